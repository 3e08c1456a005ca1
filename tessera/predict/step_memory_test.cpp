#include "tessera/predict/step_memory.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tessera/predict/activations.h"
#include "tessera/predict/states.h"

namespace tessera::predict {
namespace {

constexpr double kMiB = 1 << 20;

config::RunConfig job(const std::string& placement, int ranks) {
  config::RunConfig job;
  job.parallel.placement = *value_named<parallel::Placement>(placement);
  job.parallel.num_ranks = ranks;
  job.train.global_batch = 8;
  return job;
}

double peak(const config::RunConfig& job, const Device& device = {.is_host = true}) {
  const auto plan =
      plan::make_plan(job, models::model_preset("tiny"), {.device_is_host = device.is_host});
  return step_memory(job, plan.ranks.front(), device).peak().total();
}

// Where few tokens are computed, tables' gradients and what muon works in are the peak: 2 sequences of 64 tokens.
TEST(StepMemory, PeaksOfFewTokensAreThoseOfRuns) {
  struct {
    const char* placement;
    optim::OptimizerType optimizer;
    double mib;
  } const measured[] = {{"full_shard", optim::OptimizerType::adamw, 517.7},
                        {"full_shard", optim::OptimizerType::muon, 469.4},
                        {"shard_gradients", optim::OptimizerType::muon, 580.2},
                        {"shard_optimizer", optim::OptimizerType::muon, 633.8}};
  for (const auto& run : measured) {
    auto few = job(run.placement, 2);
    few.data.seq_len = 64;
    few.train.global_batch = 2;
    few.memory.checkpointing = memory::CheckpointMode::full;
    few.optimizer.type = run.optimizer;
    const auto plan = plan::make_plan(few, models::model_preset("small"), {.device_is_host = true});
    const double found = step_memory(few, plan.ranks.front(), {.is_host = true}).peak().total();
    EXPECT_NEAR(found / kMiB, run.mib, 0.01 * run.mib)
        << run.placement << " " << (run.optimizer == optim::OptimizerType::muon ? "muon" : "adamw");
  }
}

// Allocator peaks of runs of two steps, in MiB: 8 sequences of 256 tokens over the ranks.
struct Measured {
  const char* placement;
  int ranks;
  const char* checkpointing;
  const char* compute;
  double mib;
};
const Measured kMeasured[] = {{"replicate", 1, "none", "fp32", 203.20},
                              {"replicate", 1, "full", "fp32", 109.30},
                              {"replicate", 1, "selective", "fp32", 170.80},
                              {"replicate", 1, "feed_forward", "fp32", 138.50},
                              {"full_shard", 2, "feed_forward", "fp32", 73.10},
                              {"replicate", 2, "none", "fp32", 131.77},
                              {"full_shard", 2, "none", "fp32", 100.77},
                              {"full_shard", 2, "full", "fp32", 60.00},
                              {"full_shard", 2, "selective", "fp32", 89.20},
                              {"replicate", 1, "none", "bf16", 161.48},
                              {"replicate", 2, "full", "bf16", 89.40},
                              {"full_shard", 2, "none", "bf16", 75.47},
                              {"full_shard", 2, "full", "bf16", 49.00},
                              {"full_shard", 2, "selective", "bf16", 66.07}};

TEST(StepMemory, PeaksAreThoseOfRuns) {
  for (const auto& run : kMeasured) {
    auto changed = job(run.placement, run.ranks);
    changed.memory.checkpointing = *value_named<memory::CheckpointMode>(run.checkpointing);
    changed.precision.compute = *value_named<FloatType>(run.compute);
    // Those runs had no instructions for bfloat16.
    EXPECT_NEAR(peak(changed, {.is_host = true, .widens_bf16 = true}) / kMiB, run.mib,
                0.01 * run.mib)
        << run.placement << " " << run.ranks << " " << run.checkpointing << " " << run.compute;
  }
}

TEST(StepMemory, WhatWaitsElsewhereTakesItsBuffersAlone) {
  auto changed = job("replicate", 1);
  for (const auto mode : {memory::CheckpointMode::full, memory::CheckpointMode::selective}) {
    changed.memory.checkpointing = mode;
    changed.memory.offload_activations = memory::OffloadActivations::none;
    const auto plan = plan::make_plan(changed, models::model_preset("tiny"));
    const auto kept = static_cast<double>(kept_activation_bytes(changed, plan.ranks[0].part));
    const double on_host = peak(changed), on_gpu = peak(changed, {});
    changed.memory.offload_activations = memory::OffloadActivations::nvme;
    const auto& part = plan.ranks[0].part;
    const double away = in_flight(changed, part).away;
    EXPECT_NEAR(static_cast<double>(kept_activation_bytes(changed, part)), kept - away, 1);
    changed.offload.host_memory = 4;
    EXPECT_EQ(buffers_for_activations(changed, part), 4 * kMiB);
    EXPECT_LT(peak(changed), on_host - away / 5);
    EXPECT_LT(peak(changed, {}), on_gpu - away / 5);  // its buffers are the host's
    EXPECT_NEAR(peak(changed) - peak(changed, {}), on_host - on_gpu + 4 * kMiB, 1);
    changed.offload.host_memory = 4096;
    EXPECT_EQ(buffers_for_activations(changed, part), away);
    // Of a GPU's, those of one block are on their way.
    const double on_drives = peak(changed, {});
    changed.memory.offload_activations = memory::OffloadActivations::host;
    const double of_block = static_cast<double>(part.micro_batch * changed.data.seq_len) *
                            block_activations(changed, part, 0).away;
    EXPECT_GT(of_block, 0);
    EXPECT_NEAR(peak(changed, {}), on_drives + of_block, 1);
    EXPECT_NEAR(static_cast<double>(kept_activation_bytes(changed, part)), kept - away + of_block,
                1);
  }
}

// The same of runs on ranks that divide matrices: activations of a micro-batch between forward and
// backward, and all tensors at once.
struct MeasuredDivided {
  const char* model;
  int ranks, tp;
  bool sequence_parallel;
  const char* placement;
  const char* checkpointing;
  const char* compute;
  double activations_mib, mib;
};
const MeasuredDivided kMeasuredDivided[] = {
    {"tiny", 2, 2, true, "replicate", "none", "fp32", 63.50, 90.69},
    {"tiny", 2, 2, true, "replicate", "selective", "fp32", 44.72, 82.80},
    {"tiny", 2, 2, true, "replicate", "full", "fp32", 7.10, 49.70},
    {"tiny", 2, 2, false, "replicate", "none", "fp32", 80.54, 107.10},
    {"tiny", 2, 2, false, "replicate", "selective", "fp32", 53.73, 90.50},
    {"tiny", 2, 2, false, "replicate", "full", "fp32", 12.10, 55.80},
    {"tiny", 4, 4, true, "replicate", "none", "fp32", 32.78, 48.40},
    {"tiny", 4, 4, true, "replicate", "selective", "fp32", 23.39, 45.50},
    {"tiny", 4, 4, true, "replicate", "full", "fp32", 4.57, 28.30},
    {"tiny", 4, 4, false, "replicate", "none", "fp32", 58.33, 72.53},
    {"tiny", 4, 4, false, "replicate", "selective", "fp32", 36.89, 58.00},
    {"tiny", 4, 4, false, "replicate", "full", "fp32", 12.08, 36.00},
    {"tiny", 4, 2, true, "replicate", "none", "fp32", 31.78, 56.96},
    {"tiny", 4, 2, true, "replicate", "selective", "fp32", 22.39, 53.00},
    {"tiny", 4, 2, true, "replicate", "full", "fp32", 3.58, 36.50},
    {"tiny", 4, 2, false, "replicate", "none", "fp32", 40.30, 65.16},
    {"tiny", 4, 2, false, "replicate", "selective", "fp32", 26.89, 56.80},
    {"tiny", 4, 2, false, "replicate", "full", "fp32", 6.08, 39.50},
    {"gpt2", 2, 2, true, "replicate", "none", "fp32", 67.23, 109.51},
    {"gpt2", 2, 2, true, "replicate", "selective", "fp32", 43.17, 88.30},
    {"gpt2", 2, 2, true, "replicate", "full", "fp32", 7.04, 60.30},
    {"gpt2", 2, 2, false, "replicate", "none", "fp32", 84.30, 126.58},
    {"gpt2", 2, 2, false, "replicate", "selective", "fp32", 52.17, 96.40},
    {"gpt2", 2, 2, false, "replicate", "full", "fp32", 12.05, 64.30},
    {"tiny", 4, 2, true, "full_shard", "none", "fp32", 31.78, 46.51},
    {"tiny", 4, 2, true, "full_shard", "none", "bf16", 15.97, 30.98},
    {"tiny", 4, 2, true, "shard_gradients", "full", "bf16", 1.83, 25.30},
    {"tiny", 2, 2, true, "replicate", "none", "bf16", 31.88, 62.09},
    {"tiny", 4, 2, false, "full_shard", "none", "fp32", 40.30, 55.03},
    {"tiny", 4, 2, false, "full_shard", "none", "bf16", 20.24, 34.75},
    {"tiny", 4, 2, false, "shard_gradients", "full", "bf16", 3.08, 26.10},
    {"tiny", 2, 2, false, "replicate", "none", "bf16", 40.41, 70.63},
    {"gpt2", 4, 4, true, "replicate", "none", "bf16", 17.38, 48.31},
    {"gpt2", 4, 4, false, "replicate", "none", "bf16", 30.24, 61.16},
    {"two layers", 8, 8, true, "replicate", "none", "fp32", 10.37, 17.68},
    {"two layers", 8, 8, true, "replicate", "selective", "fp32", 8.02, 19.70},
    {"two layers", 8, 8, true, "replicate", "full", "fp32", 2.81, 15.40},
    {"two layers", 8, 8, false, "replicate", "none", "fp32", 26.15, 31.77},
    {"two layers", 8, 8, false, "replicate", "selective", "fp32", 16.77, 28.00},
    {"two layers", 8, 8, false, "replicate", "full", "fp32", 8.07, 19.80}};

TEST(StepMemory, PeaksAreThoseOfRunsThatDivideMatrices) {
  for (const auto& run : kMeasuredDivided) {
    auto changed = job(run.placement, run.ranks);
    changed.parallel.tp = run.tp;
    changed.parallel.sequence_parallel = run.sequence_parallel;
    changed.memory.checkpointing = *value_named<memory::CheckpointMode>(run.checkpointing);
    changed.precision.compute = *value_named<FloatType>(run.compute);
    changed.model.vocab_size = 256;
    if (run.model == std::string("two layers")) changed.model.num_layers = 2;
    if (run.model == std::string("gpt2")) {
      changed.model.preset = "gpt2";
      changed.model.vocab_size = 2048, changed.model.dim = 256, changed.model.num_layers = 4;
      changed.model.num_heads = 8;
    }
    const auto rank =
        plan::make_plan(changed, config::resolve_model_shape(changed.model)).ranks.front();
    const Device device{.is_host = true, .widens_bf16 = true};
    const auto memory = step_memory(changed, rank, device);
    const auto activations = static_cast<double>(kept_activation_bytes(changed, rank.part));
    // Beside what the blocks keep there are 0.1 MiB.
    EXPECT_NEAR(activations / kMiB, run.activations_mib, 0.1 + 0.001 * run.activations_mib);
    // Of what such a processor widens for a product, not all comes at the peak of the rest.
    const double within = std::string_view(run.compute) == "bf16" ? 0.035 : 0.01;
    EXPECT_NEAR(memory.peak().total() / kMiB, run.mib, within * run.mib)
        << run.model << " " << run.ranks << " " << run.tp << " " << run.sequence_parallel << " "
        << run.placement << " " << run.checkpointing << " " << run.compute;
  }
}

// The same of adapters of rank 16 (with instructions for bfloat16).
struct MeasuredAdapter {
  const char* weights;
  const char* placement;
  int ranks;
  const char* checkpointing;
  const char* compute;
  std::vector<std::string> targets;
  double mib;
};
const MeasuredAdapter kMeasuredAdapters[] = {
    {"as_stored", "replicate", 1, "none", "fp32", {"all-linear"}, 164.02},
    {"as_stored", "replicate", 2, "none", "fp32", {"all-linear"}, 91.83},
    {"as_stored", "full_shard", 2, "none", "fp32", {"all-linear"}, 83.48},
    {"as_stored", "replicate", 1, "selective", "fp32", {"all-linear"}, 130.80},
    {"as_stored", "full_shard", 2, "selective", "fp32", {"all-linear"}, 71.30},
    {"as_stored", "replicate", 1, "full", "fp32", {"all-linear"}, 69.40},
    {"as_stored", "full_shard", 2, "full", "fp32", {"all-linear"}, 40.50},
    {"as_stored", "replicate", 1, "none", "bf16", {"all-linear"}, 101.42},
    {"as_stored", "full_shard", 2, "none", "bf16", {"all-linear"}, 50.90},
    {"as_stored", "replicate", 2, "full", "bf16", {"all-linear"}, 28.40},
    {"as_stored", "full_shard", 2, "full", "bf16", {"all-linear"}, 22.24},
    {"as_stored", "replicate", 1, "none", "fp32", {"q_proj", "v_proj"}, 128.38},
    {"as_stored", "replicate", 1, "selective", "fp32", {"q_proj", "v_proj"}, 124.70},
    {"as_stored", "replicate", 1, "full", "fp32", {"q_proj", "v_proj"}, 63.20},
    {"as_stored", "replicate", 1, "full", "fp32", {"o_proj", "up_proj"}, 63.80},
    {"nf4_double", "replicate", 1, "none", "fp32", {"all-linear"}, 154.38},
    {"nf4_double", "full_shard", 2, "none", "fp32", {"all-linear"}, 78.66},
    {"nf4_double", "replicate", 2, "selective", "fp32", {"all-linear"}, 65.60},
    {"nf4_double", "full_shard", 2, "full", "fp32", {"all-linear"}, 30.90},
    {"nf4_double", "replicate", 1, "none", "bf16", {"all-linear"}, 97.32},
    {"nf4_double", "full_shard", 2, "none", "bf16", {"all-linear"}, 48.85},
    {"nf4_double", "replicate", 1, "full", "bf16", {"all-linear"}, 40.02},
    {"nf4_double", "full_shard", 2, "full", "bf16", {"all-linear"}, 20.19}};

TEST(StepMemory, PeaksAreThoseOfRunsOfAdapters) {
  for (const auto& run : kMeasuredAdapters) {
    auto changed = job(run.placement, run.ranks);
    changed.adapter.type = models::AdapterType::lora;
    changed.adapter.rank = 16;
    changed.adapter.targets = run.targets;
    changed.model.weights = *value_named<WeightFormat>(run.weights);
    changed.memory.checkpointing = *value_named<memory::CheckpointMode>(run.checkpointing);
    changed.precision.compute = *value_named<FloatType>(run.compute);
    EXPECT_NEAR(peak(changed) / kMiB, run.mib, 0.012 * run.mib)
        << run.weights << " " << run.placement << " " << run.ranks << " " << run.checkpointing
        << " " << run.compute << " " << run.targets.front();
  }
}

// P parameters on N ranks, bytes of all states (Rajbhandari et al., section 5; docs).
TEST(Buffers, StatesAreThoseOfZero) {
  const auto shape = models::model_preset("tiny");
  const auto p = static_cast<double>(models::num_parameters(shape));
  const auto states = [&](const std::string& placement, const std::string& compute) {
    auto changed = job(placement, 4);
    changed.precision.compute = *value_named<FloatType>(compute);
    double bytes = 0;
    const auto plan = plan::make_plan(changed, shape);
    for (const auto& unit : plan.ranks.front().units) {
      const auto each = unit_bytes(unit, changed);
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
  run.parallel.offload_params = parallel::OffloadParams::host;
  const auto plan = plan::make_plan(run, models::model_preset("tiny"), {.device_is_host = false});
  const auto memory = step_memory(run, plan.ranks.front(), gpu);
  for (const auto& phase : memory.phases) EXPECT_EQ(phase.optimizer + phase.parameters, 0);
  EXPECT_LT(memory.peak().total(), before);
  // One unit's gradient is on its way to the host; in bf16 the next one's slices are cast when they have come.
  const auto unit = [&] {
    const auto& units = plan.ranks.front().units;
    return unit_bytes(units[units.size() / 2], run);
  };
  const double slice = unit().passing_gradients / 2;
  EXPECT_EQ(unit().leaving, slice);
  EXPECT_EQ(gradients_on_the_way(unit(), 0), 3 * slice);
  EXPECT_EQ(unit().casting, 0);
  run.precision.compute = FloatType::bf16;
  const auto mixed = plan::make_plan(run, models::model_preset("tiny"), {.device_is_host = false});
  const auto& units = mixed.ranks.front().units;
  const auto cast = unit_bytes(units[units.size() / 2], run);
  EXPECT_EQ(cast.casting, slice);
  EXPECT_EQ(largest_cast({unit(), cast}), slice);
  run.precision.compute = FloatType::fp32;
  EXPECT_GT(peak(run), 0.9 * peak(job("full_shard", 2)));  // on a CPU nothing is gained
}

TEST(StepMemory, MicroBatchesTakeLessButKeepSlices) {
  auto run = job("shard_gradients", 2);
  const double whole = peak(run);
  run.train.micro_batch = 1;
  EXPECT_LT(peak(run), 0.7 * whole);
}

// Buffers of runs on four ranks, in MiB.
TEST(StepMemory, BuffersOfCommunicationAreThoseOfRuns) {
  const auto buffers = [](const config::ParallelSection& section) {
    auto run = job(std::string(text_of(section.placement)), 4);
    run.parallel = section;
    run.parallel.num_ranks = 4;
    auto shape = models::model_preset("tiny");
    shape.num_kv_heads = 2;
    const auto rank = plan::make_plan(run, shape).ranks.front();
    return step_memory(run, rank, {.is_host = true}).communication / kMiB;
  };
  EXPECT_EQ(buffers({}), 4);
  EXPECT_EQ(buffers({.placement = parallel::Placement::full_shard}), 8);
  EXPECT_EQ(buffers({.placement = parallel::Placement::full_shard, .dp_replicate = 2}), 10);
  EXPECT_EQ(buffers({.tp = 2}), 8);
  EXPECT_EQ(buffers({.placement = parallel::Placement::full_shard, .tp = 2}), 10);
  EXPECT_EQ(buffers({.tp = 4}), 6);  // two have the same key head
}

// 1F1B holds as many micro-batches as stages follow; whole gradients wait for the last of them.
TEST(StepMemory, OfAPipeline) {
  auto run = job("full_shard", 4);
  run.parallel.pp = 2;
  run.parallel.stage_layers = {2, 2};
  const auto shape = models::model_preset("tiny");
  const auto ranks = plan::make_plan(run, shape).ranks;
  const double tokens = 256, d = 256, p = static_cast<double>(models::num_parameters(shape));
  const double block = tokens * block_activations(run, ranks[0].part, 0).kept;
  const auto phases = [&](size_t place) {
    return step_memory(run, ranks[place], {.is_host = true}).phases;
  };
  const auto first = phases(0), last = phases(1);
  const auto named = [](const std::vector<Moment>& moments, const std::string& phase) {
    return *std::ranges::find(moments, phase, &Moment::phase);
  };
  const double beside = named(first, "between steps").activations;
  EXPECT_EQ(std::ranges::count(first, "loss", &Moment::phase), 0);
  // Blocks, with the last product and sum, and two messages on their way.
  EXPECT_DOUBLE_EQ(named(first, "forward").activations,
                   beside + 2 * 2 * block + (2 + 2) * tokens * d * 4);
  EXPECT_DOUBLE_EQ(named(last, "forward").activations,
                   beside + 2 * block + (2 + 2) * tokens * d * 4);
  EXPECT_GT(named(last, "loss").logits, 0);
  // Half of the slices each; whole gradients of the last rank's half in its backward.
  EXPECT_DOUBLE_EQ(named(last, "optimizer step").gradients, 4 * (p / 2 + d / 2) / 2);
  EXPECT_DOUBLE_EQ(named(last, "backward").gradients, 4 * (p / 2 + d / 2));
}

TEST(Activations, EveryThirdBlockIsCheckpointed) {
  config::MemorySection section{.checkpointing = memory::CheckpointMode::full,
                                .checkpoint_every = 3};
  EXPECT_TRUE(is_checkpointed(section, 3));
  EXPECT_FALSE(is_checkpointed(section, 4));
  EXPECT_FALSE(is_checkpointed({}, 0));
}

// Numbers of docs/activation_checkpointing.md.
TEST(Activations, OfALlamaBlock) {
  const int64_t d = 256, k = 128, f = 688, h = 8;
  auto run = job("replicate", 1);
  const auto part = plan::make_plan(run, models::model_preset("tiny")).ranks.front().part;
  EXPECT_EQ(block_activations(run, part, 0).kept, 4 * (6 * d + 2 * k + 3 * f + h + 2));
  run.memory.checkpointing = memory::CheckpointMode::selective;
  EXPECT_EQ(block_activations(run, part, 0).kept, 4 * (4 * d + 2 * k + 2 * f + h));
  run.memory.checkpointing = memory::CheckpointMode::feed_forward;
  EXPECT_EQ(block_activations(run, part, 0).kept, 4 * (4 * d + 2 * k + h));
  run.memory.checkpointing = memory::CheckpointMode::full;
  EXPECT_EQ(block_activations(run, part, 0).kept, 4 * d);
  run.memory.checkpointing = memory::CheckpointMode::none;
  run.precision.compute = FloatType::bf16;
  EXPECT_EQ(block_activations(run, part, 0).kept, 2 * (6 * d + 2 * k + 3 * f) + 4 * (h + 2));
}

}  // namespace
}  // namespace tessera::predict
