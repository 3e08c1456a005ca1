// Every placement, precision and checkpointing on the fixture Llamas: the losses and gradient norms
// that PyTorch recorded (DDP and FSDP2 print the same), the same bits in every run.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "tests/parity/fixture.h"

namespace tessera::parity {
namespace {

struct Layout {
  int dp_replicate = 1, dp_shard = 1;
};

constexpr Layout kLayouts[] = {{.dp_shard = 1}, {.dp_shard = 2}, {.dp_shard = 4}, {2, 2}};

config::RunConfig job_of(const std::string& size, const std::string& placement) {
  auto job = size == "micro" ? recorded_job(64, 8) : recorded_job(256, 8);
  job.model.preset = size;
  job.parallel.placement = *value_named<parallel::Placement>(placement);
  return job;
}

Recorded recorded(const std::string& size, const std::string& dtype = "fp32") {
  const auto parity = read_fixture("llama_" + size + "/parity.json")[size];
  return {parity["ddp_2ranks_" + dtype]["loss"], parity["ddp_2ranks_" + dtype]["grad_norm"]};
}

mesh::MeshShape mesh_of(const Layout& layout, const std::string& placement) {
  if (placement == "replicate") return {.dp_replicate = layout.dp_replicate * layout.dp_shard};
  return {.dp_replicate = layout.dp_replicate, .dp_shard = layout.dp_shard};
}

config::RunConfig with_mesh(config::RunConfig job, const mesh::MeshShape& shape) {
  job.parallel.num_ranks = shape.num_ranks();
  job.parallel.dp_replicate = shape.dp_replicate;
  job.parallel.dp_shard = shape.dp_shard;
  config::check(job, {});
  return job;
}

/// Losses of the first steps.
std::vector<double> losses_of(const config::RunConfig& job, const mesh::DeviceMesh& mesh,
                              size_t steps) {
  auto run = train::assemble(job, mesh);
  std::vector<double> losses;
  for (size_t step = 0; step < steps; ++step) {
    losses.push_back(train::train_step(run, static_cast<int64_t>(step)).loss);
  }
  return losses;
}

double largest_relative_difference(const std::vector<double>& a, const std::vector<double>& b) {
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(a[i] / b[i] - 1));
  return largest;
}

class PlacementParityTest : public ::testing::TestWithParam<std::tuple<std::string, int>> {
 protected:
  /// Runs `check` on ranks of this placement and layout, with each kind of checkpointing.
  static void with_each_checkpointing(
      const std::function<void(const config::RunConfig& job, const mesh::DeviceMesh& mesh)>&
          check) {
    const auto& [placement, layout] = GetParam();
    const auto shape = mesh_of(kLayouts[layout], placement);
    on_mesh({.shape = shape}, [&, &placement = placement](const mesh::DeviceMesh& mesh) {
      for (const auto* checkpointing : {"none", "full", "feed_forward", "selective"}) {
        SCOPED_TRACE(checkpointing);
        auto job = with_mesh(job_of("micro", placement), shape);
        job.memory.checkpointing = *value_named<memory::CheckpointMode>(checkpointing);
        check(job, mesh);
      }
    });
  }
};

TEST_P(PlacementParityTest, Fp32EqualsTheRecordedRunToTheBitInEveryRun) {
  with_each_checkpointing([](const auto& job, const auto& mesh) {
    auto run = train::assemble(job, mesh);
    expect_recorded(run, recorded("micro"));
    EXPECT_EQ(losses_of(job, mesh, 3), losses_of(job, mesh, 3));
  });
}

class PlacementBf16Test : public PlacementParityTest {};

TEST_P(PlacementBf16Test, StaysAsNearAsPyTorch) {
  with_each_checkpointing([](config::RunConfig job, const auto& mesh) {
    job.precision.compute = FloatType::bf16;
    const auto fp32 = recorded("micro").losses;
    const auto losses = losses_of(job, mesh, fp32.size());
    EXPECT_LT(largest_relative_difference(losses, fp32), 7e-3);
    const auto again = losses_of(job, mesh, 3);
    EXPECT_TRUE(std::equal(again.begin(), again.end(), losses.begin()));
    job.precision.autocast = true;
    EXPECT_LT(largest_relative_difference(losses_of(job, mesh, fp32.size()), fp32), 1e-3);
  });
}

INSTANTIATE_TEST_SUITE_P(All, PlacementParityTest,
                         ::testing::Combine(::testing::Values("replicate", "shard_optimizer",
                                                              "shard_gradients", "full_shard"),
                                            ::testing::Range(0, 4)));

// These run on two ranks and on two times two alone: bf16 costs twice as much as fp32.
INSTANTIATE_TEST_SUITE_P(All, PlacementBf16Test,
                         ::testing::Combine(::testing::Values("replicate", "shard_optimizer",
                                                              "shard_gradients", "full_shard"),
                                            ::testing::Values(1, 3)));

class TinyPlacementTest : public ::testing::TestWithParam<std::string> {};

TEST_P(TinyPlacementTest, TwoByTwoEqualsTheRecordedRun) {
  const auto shape = mesh_of({2, 2}, GetParam());
  on_mesh({.shape = shape}, [&](const mesh::DeviceMesh& mesh) {
    auto job = with_mesh(job_of("tiny", GetParam()), shape);
    job.train.micro_batch = 1;
    job.memory.checkpointing = memory::CheckpointMode::selective;
    auto run = train::assemble(job, mesh);
    expect_recorded(run, recorded("tiny"));
  });
}

INSTANTIATE_TEST_SUITE_P(All, TinyPlacementTest,
                         ::testing::Values("replicate", "shard_optimizer", "shard_gradients",
                                           "full_shard"));

/// How units are formed, resharded and prefetched changes no number.
TEST(PlacementOptions, ChangeNoNumber) {
  const mesh::MeshShape shape{.dp_shard = 4};
  on_mesh({.shape = shape}, [&](const mesh::DeviceMesh& mesh) {
    const auto job = with_mesh(job_of("micro", "full_shard"), shape);
    const auto expect_same = [&](const std::string& what, auto change) {
      auto changed = job;
      change(changed);
      SCOPED_TRACE(what);
      auto run = train::assemble(changed, mesh);
      auto few = recorded("micro");
      few.losses.resize(5);
      expect_recorded(run, few);
    };
    expect_same("by size", [](auto& c) {
      c.parallel.units = parallel::Units::size, c.parallel.min_num_params = 9000;
    });
    expect_same("by name", [](auto& c) {
      c.parallel.units = parallel::Units::name, c.parallel.unit_patterns = {"*.mlp", "*.self_attn"};
      c.memory.checkpointing = memory::CheckpointMode::full;
    });
    expect_same("whole", [](auto& c) { c.parallel.units = parallel::Units::model; });
    for (const char* checkpointing : {"full", "selective"}) {
      expect_same("by size, recomputed", [&](auto& c) {
        c.parallel.units = parallel::Units::size, c.parallel.min_num_params = 3000;
        c.memory.checkpointing = *value_named<memory::CheckpointMode>(checkpointing),
        c.train.micro_batch = 1;
      });
      expect_same("by name, recomputed", [&](auto& c) {
        c.parallel.units = parallel::Units::name, c.parallel.unit_patterns = {"*.mlp"};
        c.memory.checkpointing = *value_named<memory::CheckpointMode>(checkpointing);
      });
      expect_same("whole, recomputed", [&](auto& c) {
        c.parallel.units = parallel::Units::model,
        c.memory.checkpointing = *value_named<memory::CheckpointMode>(checkpointing);
      });
    }
    expect_same("kept", [](auto& c) { c.parallel.reshard_after_forward = false; });
    expect_same("to two ranks", [](auto& c) { c.parallel.reshard_after_forward = 2; });
    expect_same("post",
                [](auto& c) { c.parallel.backward_prefetch = parallel::BackwardPrefetch::post; });
    expect_same("no prefetch", [](auto& c) {
      c.parallel.backward_prefetch = parallel::BackwardPrefetch::none,
      c.parallel.forward_prefetch = false;
    });
    expect_same("one unit at a time", [](auto& c) { c.parallel.max_gathered_units = 1; });
    expect_same("offload",
                [](auto& c) { c.parallel.offload_params = parallel::OffloadParams::host; });
    expect_same("offload of the optimizer, of half the units", [](auto& c) {
      c.parallel.offload_optimizer = parallel::OffloadOptimizer::host;
      c.parallel.offload_fraction = 0.5;
    });
    expect_same("micro-batches", [](auto& c) { c.train.micro_batch = 1; });
  });
}

TEST(RandomStart, IsTheSameForAnyNumberOfRanks) {
  for (const int ranks : {2, 3}) {
    const mesh::MeshShape shape{.dp_shard = ranks};
    on_mesh({.shape = shape}, [&](const mesh::DeviceMesh& mesh) {
      auto job = job_of("micro", "full_shard");
      auto run = train::assemble(job, mesh);
      auto whole = models::make_language_model(models::model_preset("micro"));
      models::initialise(*whole, job.model.seed, job.model.init_std);
      run.parallel.unshard();
      const auto parameters = run.model->named_parameters();
      for (const auto& item : whole->named_parameters()) {
        EXPECT_TRUE(torch::equal(item.value(), parameters[item.key()])) << item.key();
      }
    });
  }
}

TEST(LossScaling, Fp16SkipsOverflowsAndTrains) {
  const mesh::MeshShape shape{.dp_shard = 2};
  on_mesh({.shape = shape}, [&](const mesh::DeviceMesh& mesh) {
    auto job = with_mesh(job_of("micro", "full_shard"), shape);
    job.precision.compute = FloatType::fp16;
    auto run = train::assemble(job, mesh);
    const auto fp32 = recorded("micro").losses;
    std::vector<double> losses;
    while (losses.size() < fp32.size()) {
      const auto result = train::train_step(run, static_cast<int64_t>(losses.size()));
      if (result.skipped) continue;  // the same batch once more, with a lower scale
      losses.push_back(result.loss);
    }
    EXPECT_LT(largest_relative_difference(losses, fp32), 2e-3);
    EXPECT_LE(run.loss_scaler->scale(), 65536);
  });
}

TEST(NonFinite, TheFirstUnitIsNamedAndNothingIsUpdated) {
  const mesh::MeshShape shape{.dp_shard = 2};
  for (const auto* placement : {"shard_optimizer", "full_shard"}) {
    on_mesh({.shape = shape}, [&](const mesh::DeviceMesh& mesh) {
      auto run = train::assemble(with_mesh(job_of("micro", placement), shape), mesh);
      EXPECT_FALSE(train::train_step(run, 0).skipped);
      run.parallel.fill([](const std::string& name, int64_t, const torch::Tensor& part) {
        if (name == "model.layers.1.mlp.up_proj.weight") {
          part.fill_(std::numeric_limits<float>::infinity());
        }
      });
      const auto before = run.parallel.slices()[0].parameter.clone();
      const auto result = train::train_step(run, 1);
      EXPECT_TRUE(result.skipped);
      EXPECT_EQ(result.nonfinite_unit, "model.layers.1");
      EXPECT_TRUE(torch::equal(run.parallel.slices()[0].parameter, before));
    });
  }
}

/// precision.parameters bf16: everything is, but the sums of gradients.
TEST(PureBf16, TrainsWithStochasticRounding) {
  const mesh::MeshShape shape{.dp_shard = 2};
  on_mesh({.shape = shape}, [&](const mesh::DeviceMesh& mesh) {
    auto job = with_mesh(job_of("micro", "full_shard"), shape);
    job.precision = {.compute = FloatType::bf16,
                     .parameters = FloatType::bf16,
                     .optimizer_states = optim::StateType::bf16,
                     .stochastic_rounding = true};
    auto run = train::assemble(job, mesh);
    for (const auto& slice : run.parallel.slices()) {
      EXPECT_EQ(slice.parameter.scalar_type(), torch::kBFloat16);
    }
    const auto fp32 = recorded("micro").losses;
    const auto losses = losses_of(job, mesh, fp32.size());
    EXPECT_LT(largest_relative_difference(losses, fp32), 7e-3);
    EXPECT_EQ(losses, losses_of(job, mesh, fp32.size()));
  });
}

}  // namespace
}  // namespace tessera::parity
