// What a training step asks of its device: how often the host waits for it, and how many operators a layer starts. Counted on the CPU, whose
// steps are the same but for the kernels inside an operator.
#include <ATen/record_function.h>
#include <gtest/gtest.h>

#include <map>
#include <mutex>
#include <set>
#include <string>
#include <utility>

#include "bench/step_bytes.h"
#include "tessera/kernels/cpu/matmul.h"
#include "tessera/train/assemble.h"
#include "tessera/train/step.h"
#include "tests/gpu/job_case.h"
#include "tests/support/ranks.h"

namespace tessera {
namespace {

using Counts = std::map<std::string, int64_t>;

/// Operators that need a result on the host.
const std::set<std::string> kWaiting = {
    "aten::_local_scalar_dense", "aten::_unique2", "aten::equal",
    "aten::masked_select",       "aten::nonzero",  "aten::unique_dim"};

/// Counts what the host waits for, in all threads, while it lives: results that it needs, and copies from one device to another.
class WaitCount {
 public:
  WaitCount() {
    current() = this;
    handle_ = at::addGlobalCallback(
        at::RecordFunctionCallback(
            [](const at::RecordFunction& function) -> std::unique_ptr<at::ObserverContext> {
              current()->add(function);
              return nullptr;
            })
            .needsInputs(true)
            .scopes({at::RecordScope::FUNCTION}));
  }
  ~WaitCount() { at::removeCallback(handle_); }
  WaitCount(const WaitCount&) = delete;
  WaitCount& operator=(const WaitCount&) = delete;

  const Counts& waits() const { return waits_; }

 private:
  static WaitCount*& current() {
    static WaitCount* count = nullptr;
    return count;
  }

  void add(const at::RecordFunction& function) {
    const std::string name = function.name();
    const std::lock_guard lock(mutex_);
    if (kWaiting.contains(name)) ++waits_[name];
    if (name != "aten::to" && name != "aten::_to_copy") return;
    for (const auto& input : function.inputs()) {
      if (input.isDevice()) ++waits_[name + " of a device"];
    }
  }

  at::CallbackHandle handle_;
  std::mutex mutex_;
  Counts waits_;
};

config::RunConfig job_of(const Case& c) {
  auto job = tiny_job();
  job.precision.compute = FloatType::bf16;
  return job_of(std::move(job), c);
}

/// The second step's, of the run of `job`: the first makes what stays.
void count_step(const config::RunConfig& job, const mesh::DeviceMesh& mesh, Counts& started,
                Counts& waits) {
  auto run = train::assemble(job, mesh);
  train::train_step(run, 0);
  const auto batches = train::micro_batches(run, run.train_loader, 1);
  const WaitCount waiting;
  const bench::ByteCount count;  // of operators that move something, each of which starts a kernel
  train::train_step(run, 1, batches);
  for (const auto& [name, entry] : count.operators()) started[name] = entry.calls;
  waits = waiting.waits();
}

std::string told(const Counts& counts) {
  std::string text;
  for (const auto& [name, count] : counts) text += "\n  " + std::to_string(count) + " " + name;
  return text;
}

int64_t sum_of(const Counts& counts) {
  int64_t sum = 0;
  for (const auto& [name, count] : counts) sum += count;
  return sum;
}

class HostWaits : public ::testing::TestWithParam<Case> {};

// The loss. The squares of the norm are the other copy from a GPU, and on the CPU no operator.
TEST_P(HostWaits, OnceAStep) {
  const auto& c = GetParam();
  on_mesh({.shape = c.shape}, [&c](const mesh::DeviceMesh& mesh) {
    Counts started, waits;
    count_step(job_of(c), mesh, started, waits);
    EXPECT_EQ(waits, (Counts{{"aten::_local_scalar_dense", 1}})) << told(waits);
  });
}

INSTANTIATE_TEST_SUITE_P(
    Cases, HostWaits,
    ::testing::Values(
        Case{"bf16", {}},
        Case{"fp32", {}, [](auto& job) { job.precision.compute = FloatType::fp32; }},
        Case{"fp16", {}, [](auto& job) { job.precision.compute = FloatType::fp16; }},
        Case{"micro_batches", {}, [](auto& job) { job.train.micro_batch = 2; }},
        Case{"full_checkpointing",
             {},
             [](auto& job) { job.memory.checkpointing = memory::CheckpointMode::full; }},
        Case{"selective_checkpointing",
             {},
             [](auto& job) { job.memory.checkpointing = memory::CheckpointMode::selective; }},
        Case{"update_in_backward",
             {},
             [](auto& job) {
               job.optimizer.in_backward = true;
               job.optimizer.max_grad_norm = 0;
             }},
        Case{"adapter",
             {},
             [](auto& job) {
               job.adapter.type = models::AdapterType::lora;
               job.adapter.rank = 4;
             }},
        Case{"full_shard", {.dp_shard = 2}}, Case{"tp", {.tp = 2}}),
    [](const auto& info) { return info.param.name; });

// A fused kernel counts as one. Where it was ATen alone, a layer had some 140.
TEST(Operators, AreFewALayer) {
  on_mesh({.shape = {}}, [](const mesh::DeviceMesh& mesh) {
    auto job = job_of({.name = "", .shape = {}});
    // A processor without bfloat16's instructions widens factors block by block.
    if (!kernels::multiplies_bf16_into_float()) job.precision.compute = FloatType::fp32;
    Counts few, more, waits;
    job.model.num_layers = 2;
    count_step(job, mesh, few, waits);
    job.model.num_layers = 4;
    count_step(job, mesh, more, waits);
    Counts of_a_layer;
    for (const auto& [name, count] : more) {
      if (count > few[name]) of_a_layer[name] = (count - few[name]) / 2;
    }
    EXPECT_LE(sum_of(of_a_layer), 40) << told(of_a_layer);
    EXPECT_GE(sum_of(of_a_layer), 20) << told(of_a_layer);  // 12 products, and what is ours
  });
}

}  // namespace
}  // namespace tessera
