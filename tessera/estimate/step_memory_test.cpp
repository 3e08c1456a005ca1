#include "tessera/estimate/step_memory.h"

#include <gtest/gtest.h>

#include "tessera/estimate/activations.h"

namespace tessera::estimate {
namespace {

constexpr double kMiB = 1 << 20;

config::RunConfig job(const std::string& placement, int ranks) {
  config::RunConfig job;
  job.parallel.placement = placement;
  job.parallel.num_ranks = ranks;
  job.train.global_batch = 8;
  return job;
}

double peak(const config::RunConfig& job, const Device& device = {.is_host = true}) {
  const auto shape = config::model_preset("tiny");
  return step_memory(job, shape, plan_units(job, shape, device.is_host),
                     job.train.global_batch / job.parallel.num_ranks, device)
      .peak()
      .total();
}

// Allocator peaks of runs of two steps, in MiB: 8 sequences of 256 tokens over the ranks.
struct Measured {
  const char* placement;
  int ranks;
  const char* checkpointing;
  const char* compute;
  double mib;
};
const Measured kMeasured[] = {
    {"replicate", 1, "none", "fp32", 203.20},      {"replicate", 1, "full", "fp32", 111.33},
    {"replicate", 1, "selective", "fp32", 172.77}, {"replicate", 2, "none", "fp32", 131.77},
    {"full_shard", 2, "none", "fp32", 100.77},     {"full_shard", 2, "full", "fp32", 61.00},
    {"full_shard", 2, "selective", "fp32", 90.18}, {"replicate", 1, "none", "bf16", 179.48},
    {"replicate", 2, "full", "bf16", 95.40},       {"full_shard", 2, "none", "bf16", 81.47},
    {"full_shard", 2, "full", "bf16", 53.19},      {"full_shard", 2, "selective", "bf16", 72.07}};

TEST(StepMemory, PeaksAreThoseOfRuns) {
  for (const auto& run : kMeasured) {
    auto changed = job(run.placement, run.ranks);
    changed.memory.checkpointing = run.checkpointing;
    changed.precision.compute = run.compute;
    // Those runs had no instructions for bfloat16.
    EXPECT_NEAR(peak(changed, {.is_host = true, .widens_products = true}) / kMiB, run.mib,
                0.01 * run.mib)
        << run.placement << " " << run.ranks << " " << run.checkpointing << " " << run.compute;
  }
}

// P parameters on N ranks, bytes of all states (Rajbhandari et al., section 5; docs).
TEST(Buffers, StatesAreThoseOfZero) {
  const auto shape = config::model_preset("tiny");
  const auto p = static_cast<double>(config::num_parameters(shape));
  const auto states = [&](const std::string& placement, const std::string& compute) {
    auto changed = job(placement, 4);
    changed.precision.compute = compute;
    double bytes = 0;
    for (const auto& unit : plan_units(changed, shape, true)) {
      const auto each = bytes_of(unit, changed);
      bytes += each.parameters + each.kept_whole + each.kept_gradients + each.gradient_slice +
               each.optimizer;
    }
    return bytes / p;
  };
  EXPECT_NEAR(states("replicate", "fp32"), 16, 1e-9);
  EXPECT_NEAR(states("shard_optimizer", "fp32"), 8 + 8 / 4.0, 1e-9);
  EXPECT_NEAR(states("shard_gradients", "fp32"), 4 + 12 / 4.0, 1e-9);
  EXPECT_NEAR(states("full_shard", "fp32"), 16 / 4.0, 1e-9);
  EXPECT_NEAR(states("replicate", "bf16"), 18, 1e-9);
  EXPECT_NEAR(states("shard_optimizer", "bf16"), 6 + 12 / 4.0, 1e-9);
  EXPECT_NEAR(states("shard_gradients", "bf16"), 2 + 16 / 4.0, 1e-9);
  EXPECT_NEAR(states("full_shard", "bf16"), 16 / 4.0, 1e-9);
}

TEST(StepMemory, OffloadLeavesADeviceWithoutOptimizer) {
  auto run = job("full_shard", 2);
  const Device gpu;
  const double before = peak(run, gpu);
  run.parallel.offload_params = true;
  const auto shape = config::model_preset("tiny");
  const auto memory = step_memory(run, shape, plan_units(run, shape, false), 4, gpu);
  for (const auto& phase : memory.phases) EXPECT_EQ(phase.optimizer + phase.parameters, 0);
  EXPECT_LT(memory.peak().total(), before);
  EXPECT_GT(peak(run), 0.9 * peak(job("full_shard", 2)));  // on a CPU nothing is gained
}

TEST(StepMemory, MicroBatchesTakeLessButKeepSlices) {
  auto run = job("shard_gradients", 2);
  const double whole = peak(run);
  run.train.micro_batch = 1;
  EXPECT_LT(peak(run), 0.7 * whole);
}

TEST(Activations, EveryThirdBlockIsCheckpointed) {
  config::MemorySection section{.checkpointing = "full", .checkpoint_every = 3};
  EXPECT_TRUE(is_checkpointed(section, 3));
  EXPECT_FALSE(is_checkpointed(section, 4));
  EXPECT_FALSE(is_checkpointed({}, 0));
}

// Numbers of docs/activation_checkpointing.md.
TEST(Activations, OfALlamaBlock) {
  const auto shape = config::model_preset("tiny");
  const int64_t d = 256, k = 128, f = 688, h = 8;
  auto run = job("replicate", 1);
  EXPECT_EQ(block_activations(run, shape, false).kept, 4 * (6 * d + 2 * k + 3 * f + h + 2));
  run.memory.checkpointing = "selective";
  EXPECT_EQ(block_activations(run, shape, true).kept, 4 * (4 * d + 2 * k + 2 * f + h));
  run.memory.checkpointing = "full";
  EXPECT_EQ(block_activations(run, shape, true).kept, 4 * d);
  run.precision.compute = "bf16";
  EXPECT_EQ(block_activations(run, shape, false).kept, 2 * (6 * d + 2 * k + 3 * f) + 4 * (h + 2));
}

}  // namespace
}  // namespace tessera::estimate
