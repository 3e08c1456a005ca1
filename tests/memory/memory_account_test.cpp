// What each placement holds on 1 to 8 ranks: ZeRO's formulas, and what a run measures.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "tessera/kernels/cpu/memory.h"
#include "tessera/train/assemble.h"
#include "tessera/train/memory_and_traffic.h"
#include "tessera/train/step.h"
#include "tests/support/ranks.h"
#include "tests/support/shared_folder.h"
#include "tests/support/tiny_job.h"

namespace tessera {
namespace {

config::RunConfig job_of(const std::string& placement, const std::string& compute) {
  auto job = tiny_job();
  job.parallel.placement = *value_named<parallel::Placement>(placement);
  job.precision.compute = *value_named<FloatType>(compute);
  return job;
}

mesh::MeshShape mesh_of(const std::string& placement, int ranks) {
  if (placement == "replicate") return {.dp_replicate = ranks};
  return {.dp_shard = ranks};
}

/// Measured bytes of a run after two steps, by purpose.
std::map<std::string, double> measured(const config::RunConfig& job, const mesh::DeviceMesh& mesh) {
  auto run = train::assemble(job, mesh);
  for (int64_t step = 0; step < 2; ++step) train::train_step(run, step);
  const bool frees_gradients =
      std::ranges::any_of(run.parallel.units(), &parallel::Unit::frees_gradient);
  std::map<std::string, double> bytes;
  for (const auto& part : train::memory_account(run)) {
    bytes[part.name] = static_cast<double>(part.measured);
    if (part.name == "communication" || part.predicted < 0) continue;
    if (part.predicted == 0) {
      EXPECT_EQ(part.measured, 0) << part.name;
      continue;
    }
    const double tolerance = part.name == "at once" ? 0.1 : 0.02;
    // A reduction that is over before the next unit's begins has freed its unit's gradients: the
    // prediction is of two at once.
    const bool may_be_less = frees_gradients && part.name == "gradients";
    const double ratio = bytes[part.name] / static_cast<double>(part.predicted);
    EXPECT_LE(ratio, 1 + tolerance) << part.name;
    EXPECT_GE(ratio, may_be_less ? 0.5 : 1 - tolerance) << part.name;
  }
  return bytes;
}

class MemoryAccountTest
    : public ::testing::TestWithParam<std::tuple<std::string, std::string, int>> {};

// P parameters on N ranks, fp32: parameters and Adam's two states (Rajbhandari et al., section 5).
TEST_P(MemoryAccountTest, IsThatOfTheFormulas) {
  const auto shape = std::apply(
      [](const auto& placement, const auto&, int ranks) { return mesh_of(placement, ranks); },
      GetParam());
  on_mesh({.shape = shape}, [](const mesh::DeviceMesh& mesh) {
    const auto& [placement, compute, ranks] = GetParam();
    kernels::install_caching_allocator();
    const auto job = job_of(placement, compute);
    auto bytes = measured(job, mesh);
    auto in_parts = job;
    in_parts.train.micro_batch = 1;
    if (ranks < 8) measured(in_parts, mesh);
    const double p =
        4.0 * static_cast<double>(models::num_parameters(models::model_preset("tiny")));
    const double share = placement == "replicate" ? p : p / ranks;
    EXPECT_NEAR(bytes["parameters"] / share, 1, 0.02);
    EXPECT_NEAR(bytes["optimizer"] / (2 * share), 1, 0.02);
    if (placement == "replicate" && compute == "fp32") {
      EXPECT_NEAR(bytes["gradients"] / p, 1, 0.02);
    }
    if (placement == "full_shard" && ranks > 1) {
      EXPECT_LT(bytes["gathered"], 0.7 * p);  // two units of six, the embedding among them
    }
  });
}

INSTANTIATE_TEST_SUITE_P(All, MemoryAccountTest,
                         ::testing::Combine(::testing::Values("replicate", "shard_optimizer",
                                                              "shard_gradients", "full_shard"),
                                            ::testing::Values("fp32", "bf16"),
                                            ::testing::Values(1, 2, 4, 8)));

/// Bytes of the model's tensors that adamw8bit keeps in 8 bits: q and o, gate, up and down of each
/// block, and the head; what is left are the embedding, norms, and smaller matrices.
class LittleMemoryTest : public ::testing::TestWithParam<std::tuple<std::string, int>> {};

TEST_P(LittleMemoryTest, IsWhatIsEstimated) {
  const auto& [placement, ranks] = GetParam();
  on_mesh({.shape = mesh_of(placement, ranks)},
          [&, &placement = placement, &ranks = ranks](const mesh::DeviceMesh& mesh) {
            kernels::install_caching_allocator();
            for (const auto* compute : {"fp32", "bf16"}) {
              auto job = job_of(placement, compute);
              job.optimizer.max_grad_norm = 0;
              const auto usual = measured(job, mesh);
              job.optimizer.type = optim::OptimizerType::adamw8bit;
              const auto coded = measured(job, mesh);
              const auto shape = models::model_preset("tiny");
              const auto table = static_cast<double>(shape.vocab_size * shape.dim);
              const auto all = static_cast<double>(models::num_parameters(shape));
              const double share = placement == "replicate" ? 1 : ranks;
              EXPECT_NEAR(coded.at("optimizer") * share,
                          8 * table + (2 + 8.0 / 256) * (all - table), 0.01 * 8 * all);
              job.optimizer.in_backward = true;
              const auto freed = measured(job, mesh);
              EXPECT_LT(freed.at("gradients"), usual.at("gradients"));
              // Where gradients are slices, the peak is that of the first units of the backward, and
              // depends on when their reduction ends.
              const bool whole = ranks == 1 || placement == "replicate";
              EXPECT_LT(freed.at("at once"), (whole ? 1 : 1.1) * coded.at("at once"));
              EXPECT_LT(coded.at("at once"), usual.at("at once"));
            }
          });
}

INSTANTIATE_TEST_SUITE_P(All, LittleMemoryTest,
                         ::testing::Combine(::testing::Values("replicate", "shard_gradients",
                                                              "full_shard"),
                                            ::testing::Values(1, 2, 4)));

// Buffers of what is on drives: few, as there is little, or as much as may be.
class DrivesTest : public ::testing::TestWithParam<std::tuple<std::string, int64_t, int>> {};

TEST_P(DrivesTest, BuffersAreThoseThatAreEstimated) {
  const auto ranks = std::get<2>(GetParam());
  const SharedFolder folder;
  on_mesh({.shape = {.dp_shard = ranks}}, [&](const mesh::DeviceMesh& mesh) {
    const auto& [what, host_memory, num_ranks] = GetParam();
    kernels::install_caching_allocator();
    for (const auto* compute : {"fp32", "bf16"}) {
      auto job = job_of("full_shard", compute);
      job.train.run_dir = folder.path() / compute;
      job.offload.host_memory = host_memory;
      job.offload.any_file_system = true;
      job.parallel.offload_optimizer = parallel::OffloadOptimizer::nvme;
      if (what == "all") {
        job.parallel.offload_params = parallel::OffloadParams::nvme;
        job.parallel.offload_gradients = parallel::OffloadGradients::nvme;
      }
      measured(job, mesh);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(All, DrivesTest,
                         ::testing::Combine(::testing::Values("states", "all"),
                                            ::testing::Values(48, 512), ::testing::Values(1, 2)));

// From meta to the first step a rank holds its slices and one unit, never the model.
TEST(Start, HoldsTheSlicesAndOneUnit) {
  const mesh::MeshShape shape{.dp_shard = 4};
  on_mesh({.shape = shape}, [&](const mesh::DeviceMesh& mesh) {
    kernels::install_caching_allocator();
    kernels::reset_peak();
    const auto before = kernels::allocator_stats().allocated_bytes;
    const auto run = train::assemble(job_of("full_shard", "fp32"), mesh);
    int64_t slices = 0, largest = 0;
    for (const auto& unit : run.parallel.units()) {
      for (const auto& buffer : unit.buffers()) {
        slices += buffer.slice_size() * 4;
        largest = std::max(largest, buffer.size() * 4);
      }
    }
    EXPECT_LE(kernels::allocator_stats().peak_bytes - before, slices + largest);
    EXPECT_GE(kernels::allocator_stats().peak_bytes - before, slices);
  });
}

}  // namespace
}  // namespace tessera
