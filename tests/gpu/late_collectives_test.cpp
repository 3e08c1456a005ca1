// Collectives as late as NCCL's may be: whole training steps with a backend whose outputs are not there before wait() (tests/support/late_backend.h),
// and whose errors show after it.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <utility>
#include <vector>

#include "tessera/train/assemble.h"
#include "tessera/train/step.h"
#include "tests/gpu/job_case.h"
#include "tests/support/late_backend.h"
#include "tests/support/ranks.h"

namespace tessera {
namespace {

config::RunConfig job_of(const Case& c) {
  auto job = tiny_job();
  job.train.micro_batch = 1;
  return job_of(std::move(job), c);
}

std::vector<double> losses_of(const config::RunConfig& job, const mesh::DeviceMesh& mesh) {
  auto run = train::assemble(job, mesh);
  std::vector<double> losses;
  for (int64_t step = 0; step < 3; ++step) {
    const auto result = train::train_step(run, step);
    losses.push_back(result.loss);
    losses.push_back(result.grad_norm);
  }
  return losses;
}

Change placed(parallel::Placement placement) {
  return [placement](config::RunConfig& job) { job.parallel.placement = placement; };
}

void mixture(config::RunConfig& job) { job.model.path = "tests/fixtures/mixtral_micro"; }

std::vector<Case> cases() {
  return {
      {"full_shard", {.dp_shard = 2}},
      {"shard_gradients", {.dp_shard = 2}, placed(parallel::Placement::shard_gradients)},
      {"replicate", {.dp_replicate = 4}},
      {"bf16", {.dp_shard = 2}, [](auto& job) { job.precision.compute = FloatType::bf16; }},
      {"hybrid", {.dp_replicate = 2, .dp_shard = 2}},
      {"checkpointed",
       {.dp_shard = 2},
       [](auto& job) { job.memory.checkpointing = memory::CheckpointMode::full; }},
      {"updated in the backward",
       {.dp_shard = 2},
       [](auto& job) {
         job.optimizer.in_backward = true;
         job.optimizer.max_grad_norm = 0;
         job.train.micro_batch = 4;
       }},
      {"tp", {.tp = 2}},
      {"pp", {.pp = 2}},
      {"ep", {.dp_shard = 2, .ep = 2}, mixture},
      {"mixture in one unit",
       {.dp_shard = 2},
       [](auto& job) {
         mixture(job);
         job.parallel.units = parallel::Units::model;
         job.precision.compute = FloatType::bf16;
       }},
      {"all", {.pp = 2, .dp_shard = 2, .tp = 2}},
  };
}

class LateCollectives : public ::testing::TestWithParam<Case> {};

TEST_P(LateCollectives, AreWaitedForBeforeTheirResultsAreUsed) {
  const auto& c = GetParam();
  on_mesh({.shape = c.shape}, [&c](const mesh::DeviceMesh& mesh) {
    const auto job = job_of(c);
    const auto plain = losses_of(job, mesh);
    const auto late = losses_of(
        job, mesh.with_transport(
                 "late", {.device_backend = [](const auto& gloo) { return late_backend(gloo); }}));
    ASSERT_EQ(late.size(), plain.size());
    const double tolerance = job.precision.compute == FloatType::bf16 ? 3e-3 : 2e-5;
    for (size_t i = 0; i < plain.size(); ++i) EXPECT_NEAR(late[i] / plain[i], 1, tolerance) << i;
  });
}

INSTANTIATE_TEST_SUITE_P(Cases, LateCollectives, ::testing::ValuesIn(cases()),
                         [](const auto& info) {
                           auto name = info.param.name;
                           std::ranges::replace(name, ' ', '_');
                           return name;
                         });

/// The values of this rank's parameters.
std::vector<torch::Tensor> values_of(const train::Run& run) {
  std::vector<torch::Tensor> values;
  for (const auto& slice : run.parallel.slices()) values.push_back(slice.parameter.clone());
  return values;
}

// What such an operation leaves may be finite numbers: no update is made of them.
TEST(LateErrors, AreFoundBeforeTheUpdate) {
  on_mesh({.shape = {.dp_shard = 2}}, [](const mesh::DeviceMesh& mesh) {
    const auto job = job_of({.name = "", .shape = mesh.shape()});
    static std::atomic<int64_t> started = 0, fails_at = -1;
    const comm::Transport transport{.device_backend = [](const auto& gloo) {
      return late_backend(gloo, [] { return started++ == fails_at; });
    }};
    int64_t of_a_step = 0;
    {
      const auto sound = mesh.with_transport("sound", transport);
      auto run = train::assemble(job, sound);
      train::train_step(run, 0);
      of_a_step = started;
      train::train_step(run, 1);
      of_a_step = started - of_a_step;
    }
    // The last two are the sums of the norm and of the loss, of whose failure Gloo tells at once.
    for (const int64_t last : {3, 4, 5, 8}) {
      const auto failing = mesh.with_transport("failing" + std::to_string(last), transport);
      auto run = train::assemble(job, failing);
      fails_at = -1;
      train::train_step(run, 0);
      const auto before = values_of(run);
      fails_at = started + of_a_step - last;
      EXPECT_THROW(train::train_step(run, 1), c10::DistError) << last;
      const auto after = values_of(run);
      for (size_t i = 0; i < before.size(); ++i)
        EXPECT_TRUE(torch::equal(before[i], after[i])) << last;
    }
  });
}

}  // namespace
}  // namespace tessera
