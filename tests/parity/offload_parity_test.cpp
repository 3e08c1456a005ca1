// States and parameters on drives: every step is that of the run with all in memory, to the bit, in every
// placement.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/config/needs.h"
#include "tessera/predict/drives.h"
#include "tessera/train/checkpointing.h"
#include "tessera/train/preflight.h"
#include "tessera/train/resume.h"
#include "tests/parity/fixture.h"
#include "tests/support/shared_folder.h"
#include "tests/support/train_from.h"

namespace tessera::parity {
namespace {

using parallel::OffloadOptimizer, parallel::OffloadParams;

struct Layout {
  const char* placement;
  mesh::MeshShape shape;
};

const std::vector<Layout> kLayouts = {{"replicate", {}},
                                      {"replicate", {.dp_replicate = 2}},
                                      {"shard_optimizer", {.dp_shard = 3}},
                                      {"shard_gradients", {.dp_shard = 2}},
                                      {"full_shard", {}},
                                      {"full_shard", {.dp_shard = 2}},
                                      {"full_shard", {.dp_shard = 3}},
                                      {"full_shard", {.dp_replicate = 2, .dp_shard = 2}}};
constexpr size_t kFirstFullShard = 4;

config::RunConfig job_of(const Layout& layout, const std::string& preset = "micro") {
  auto job = recorded_job(/*seq_len=*/64, /*global_batch=*/12);
  job.model.preset = preset;
  job.parallel.placement = *value_named<parallel::Placement>(layout.placement);
  job.parallel.num_ranks = layout.shape.num_ranks();
  job.parallel.dp_replicate = layout.shape.dp_replicate;
  job.parallel.dp_shard = layout.shape.dp_shard;
  return job;
}

/// The job with its states on drives, which go through as little memory as there may be.
config::RunConfig on_drives(config::RunConfig job, const SharedFolder& folder) {
  job.parallel.offload_optimizer = OffloadOptimizer::nvme;
  job.offload.paths = {folder.path() / "a", folder.path() / "b"};
  job.offload.host_memory = 1;
  job.offload.block_size = 16;
  job.offload.any_file_system = true;
  return job;
}

/// Its parameters, too.
config::RunConfig all_on_drives(config::RunConfig job, const SharedFolder& folder,
                                int64_t host_memory = 2) {
  job = on_drives(std::move(job), folder);
  job.parallel.offload_params = OffloadParams::nvme;
  job.offload.host_memory = host_memory;
  return job;
}

/// The job with its reduced gradients there, too.
config::RunConfig with_gradients(config::RunConfig job) {
  job.parallel.offload_gradients = parallel::OffloadGradients::nvme;
  job.offload.host_memory += 2;
  return job;
}

/// What is updated in another type than gathers take is in no memory; Muon's is.
void expect_masters_are_away(const train::Run& run) {
  const auto& config = run.config;
  const bool all = config.parallel.offload_params == OffloadParams::nvme;
  const bool masters = config.precision.computes_in_half() && !config.precision.autocast &&
                       config.precision.parameters == FloatType::fp32 &&
                       config.optimizer.type != optim::OptimizerType::muon;
  for (const auto& slice : run.parallel.slices())
    EXPECT_EQ(slice.parameter.is_meta(), all || masters);
}

std::vector<double> losses_of(const config::RunConfig& job, const mesh::DeviceMesh& mesh,
                              int64_t steps) {
  config::check(job, {});
  auto run = train::assemble(job, mesh);
  auto losses = train_from(run, {}, steps);
  if (job.parallel.offload_optimizer == OffloadOptimizer::nvme) {
    const auto* stored = run.optimizer.stored();
    EXPECT_TRUE(stored != nullptr &&
                stored->space().counters().written_bytes >= (steps - 1) * stored->stored_bytes());
    EXPECT_LE(run.optimizer.state_bytes(), job.offload.host_memory << 20);
    expect_masters_are_away(run);
  }
  if (job.parallel.offload_params == OffloadParams::nvme) {
    const auto* stored = run.parallel.stored();
    EXPECT_TRUE(stored != nullptr && stored->space().counters().written_bytes > 0);
    EXPECT_LE(run.optimizer.state_bytes() + stored->memory_bytes(), job.offload.host_memory << 20);
    EXPECT_EQ(run.parallel.memory().parameters, 0);
  }
  if (config::gradients_on_drives(job)) {
    const auto* stored = run.parallel.stored_gradients();
    EXPECT_TRUE(stored != nullptr &&
                stored->space().counters().written_bytes >= (steps - 1) * stored->stored_bytes());
    EXPECT_LE(run.optimizer.state_bytes() + stored->memory_bytes(), job.offload.host_memory << 20);
  }
  return losses;
}

class OffloadParityTest : public ::testing::TestWithParam<size_t> {
 protected:
  using Change = std::function<void(config::RunConfig& job)>;
  using Away = std::function<config::RunConfig(const config::RunConfig& job)>;

  static const Layout& layout() { return kLayouts[GetParam()]; }

  /// The layout's job, changed, has the losses of the same with something on drives.
  static void expect_same_losses(const char* what, const Change& change, const Away& away,
                                 const mesh::DeviceMesh& mesh) {
    SCOPED_TRACE(what);
    auto job = job_of(layout());
    change(job);
    EXPECT_EQ(losses_of(away(job), mesh, 4), losses_of(job, mesh, 4));
  }
};

TEST_P(OffloadParityTest, StatesOnDrivesChangeNoBit) {
  const SharedFolder folder;
  on_mesh({.shape = layout().shape}, [&](const mesh::DeviceMesh& mesh) {
    const auto away = [&](const config::RunConfig& job) { return on_drives(job, folder); };
    const auto expect_same = [&](const char* what, const Change& change) {
      expect_same_losses(what, change, away, mesh);
    };
    expect_same("fp32", [](auto&) {});
    expect_same("bf16, checkpointing", [](auto& job) {
      job.precision.compute = FloatType::bf16;
      job.memory.checkpointing = memory::CheckpointMode::full;
    });
    expect_same("all in bf16", [](auto& job) {
      job.precision = {.compute = FloatType::bf16,
                       .parameters = FloatType::bf16,
                       .optimizer_states = optim::StateType::bf16,
                       .stochastic_rounding = true};
    });
    expect_same("8 bits", [](auto& job) { job.optimizer.type = optim::OptimizerType::adamw8bit; });
    expect_same("muon", [](auto& job) { job.optimizer.type = optim::OptimizerType::muon; });
    expect_same("in the backward", [](auto& job) {
      job.optimizer.in_backward = true;
      job.optimizer.max_grad_norm = 0;
    });
  });
}

class ParametersOnDrivesTest : public OffloadParityTest {};

TEST_P(ParametersOnDrivesTest, ChangeNoBit) {
  const SharedFolder folder;
  on_mesh({.shape = layout().shape}, [&](const mesh::DeviceMesh& mesh) {
    const auto away = [&](const config::RunConfig& job) { return all_on_drives(job, folder); };
    const auto expect_same = [&](const char* what, const Change& change) {
      expect_same_losses(what, change, away, mesh);
    };
    using memory::CheckpointMode;
    for (const auto mode :
         {CheckpointMode::none, CheckpointMode::selective, CheckpointMode::full}) {
      expect_same("fp32", [&](auto& job) { job.memory.checkpointing = mode; });
      expect_same("bf16", [&](auto& job) {
        job.precision.compute = FloatType::bf16;
        job.memory.checkpointing = mode;
      });
    }
    expect_same("fp16", [](auto& job) { job.precision.compute = FloatType::fp16; });
    expect_same("autocast", [](auto& job) {
      job.precision.compute = FloatType::bf16;
      job.precision.autocast = true;
    });
    expect_same("all in bf16", [](auto& job) {
      job.precision = {.compute = FloatType::bf16,
                       .parameters = FloatType::bf16,
                       .optimizer_states = optim::StateType::bf16,
                       .stochastic_rounding = true};
    });
    expect_same("8 bits, bf16", [](auto& job) {
      job.optimizer.type = optim::OptimizerType::adamw8bit;
      job.precision.compute = FloatType::bf16;
    });
    expect_same("in the backward", [](auto& job) {
      job.optimizer.in_backward = true;
      job.optimizer.max_grad_norm = 0;
    });
    expect_same("in the backward, bf16", [](auto& job) {
      job.optimizer.in_backward = true;
      job.optimizer.max_grad_norm = 0;
      job.precision.compute = FloatType::bf16;
    });
    expect_same("micro-batches", [](auto& job) { job.train.micro_batch = 1; });
    expect_same("whole after the forward",
                [](auto& job) { job.parallel.reshard_after_forward = false; });
    expect_same("nothing ahead", [](auto& job) {
      job.parallel.forward_prefetch = false;
      job.parallel.backward_prefetch = parallel::BackwardPrefetch::none;
    });
    expect_same("adapter", [](auto& job) {
      job.adapter.type = models::AdapterType::lora;
      job.precision.compute = FloatType::bf16;
    });
  });
}

class GradientsOnDrivesTest : public OffloadParityTest {};

TEST_P(GradientsOnDrivesTest, ChangeNoBit) {
  const SharedFolder folder;
  on_mesh({.shape = layout().shape}, [&](const mesh::DeviceMesh& mesh) {
    const auto expect_same = [&](const char* what, const Change& change) {
      const auto away = [&](const config::RunConfig& job) {
        return with_gradients(on_drives(job, folder));
      };
      expect_same_losses(what, change, away, mesh);
    };
    expect_same("fp32", [](auto&) {});
    expect_same("no clipping", [](auto& job) { job.optimizer.max_grad_norm = 0; });
    expect_same("looked at for unused parameters",
                [](auto& job) { job.train.report_unused_parameters = true; });
    expect_same("bf16, micro-batches", [](auto& job) {
      job.precision.compute = FloatType::bf16;
      job.train.micro_batch = 1;
    });
    expect_same("reduced in bf16", [](auto& job) {
      job.precision = {.compute = FloatType::bf16, .reduce = FloatType::bf16};
      job.train.micro_batch = 1;
    });
    expect_same("fp16", [](auto& job) { job.precision.compute = FloatType::fp16; });
    expect_same("8 bits", [](auto& job) { job.optimizer.type = optim::OptimizerType::adamw8bit; });
    expect_same("muon", [](auto& job) { job.optimizer.type = optim::OptimizerType::muon; });
    expect_same("adapter", [](auto& job) {
      job.adapter.type = models::AdapterType::lora;
      job.train.micro_batch = 1;
    });
    if (job_of(layout()).parallel.placement != parallel::Placement::full_shard) return;
    expect_same_losses(
        "all on drives",
        [](auto& job) {
          job.precision.compute = FloatType::bf16;
          job.train.micro_batch = 1;
          job.memory.checkpointing = memory::CheckpointMode::full;
        },
        [&](const auto& job) { return with_gradients(all_on_drives(job, folder)); }, mesh);
  });
}

constexpr size_t kFirstThatFrees = 3;
INSTANTIATE_TEST_SUITE_P(All, GradientsOnDrivesTest,
                         ::testing::Range<size_t>(kFirstThatFrees, kLayouts.size()));

INSTANTIATE_TEST_SUITE_P(All, ParametersOnDrivesTest,
                         ::testing::Range<size_t>(kFirstFullShard, kLayouts.size()));

TEST_P(OffloadParityTest, RunsGoOnWithAndWithoutDrives) {
  const SharedFolder folder;
  on_mesh({.shape = layout().shape}, [&](const mesh::DeviceMesh& mesh) {
    for (const auto type : {optim::OptimizerType::adamw, optim::OptimizerType::adamw8bit}) {
      auto job = job_of(layout());
      job.optimizer.type = type;
      job.precision.compute = FloatType::bf16;
      job.checkpoint.every = 2;
      job.checkpoint.overwrite = true;
      job.checkpoint.dir = folder.path() / std::string(text_of(type)) / "checkpoints";
      job.train.steps = 4;
      const bool all = job.parallel.placement == parallel::Placement::full_shard;
      const auto stored = all ? all_on_drives(job, folder) : on_drives(job, folder);
      auto run = train::assemble(stored, mesh);
      train::Checkpointing checkpointing(run, {});
      const auto losses = train_from(run, {}, 4, &checkpointing);
      for (auto again : {stored, on_drives(job, folder), job}) {
        again.checkpoint.resume = job.checkpoint.dir + "/step_00000002";
        auto other = train::assemble(again, mesh);
        const auto counts = train::resume(other).counts;
        EXPECT_EQ(counts.step, 2);
        EXPECT_EQ(train_from(other, counts, 4), std::vector(losses.begin() + 2, losses.end()));
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(All, OffloadParityTest, ::testing::Range<size_t>(0, kLayouts.size()));

TEST(Offload, StatesOfSeveralTimesTheBuffersAreReadEachStep) {
  const SharedFolder folder;
  on_mesh({}, [&](const mesh::DeviceMesh& mesh) {
    const auto job = job_of(kLayouts[0], "tiny");
    const auto stored = on_drives(job, folder);
    EXPECT_EQ(losses_of(stored, mesh, 3), losses_of(job, mesh, 3));
    auto run = train::assemble(stored, mesh);
    train_from(run, {}, 3);
    const auto counters = run.optimizer.stored()->space().counters();
    const auto bytes = run.optimizer.stored()->stored_bytes();
    EXPECT_GT(bytes, 8 << 20);
    EXPECT_GT(counters.read_bytes, 2 * bytes * 8 / 10);  // but in the first step
  });
}

/// Two steps move what the formulas say, through these regions and those of the states.
void expect_moved_as_predicted(train::Run& run, const offload::StoredRegions& regions) {
  const auto moved = [&] {
    const auto own = regions.space().counters(),
               states = run.optimizer.stored()->space().counters();
    return std::pair(own.read_bytes + states.read_bytes, own.written_bytes + states.written_bytes);
  };
  train_from(run, {}, 2);  // states are not read before they were written
  const auto before = moved();
  train_from(run, {.step = 2}, 4);
  const auto after = moved();
  const auto expected = predict::drive_traffic(run.config, run.rank_plan());
  const auto expect_near = [](int64_t found, double of_a_step) {
    EXPECT_NEAR(static_cast<double>(found), 2 * of_a_step, 0.1 * 2 * of_a_step);
  };
  expect_near(after.first - before.first, expected.read());
  expect_near(after.second - before.second, expected.written);
}

TEST(Offload, ParametersOfSeveralTimesTheBuffersAreReadForEachPass) {
  const SharedFolder folder;
  on_mesh({.shape = {.dp_shard = 2}}, [&](const mesh::DeviceMesh& mesh) {
    auto job = job_of({"full_shard", {.dp_shard = 2}}, "tiny");
    job.model.num_layers = 8;
    const auto stored = all_on_drives(job, folder, /*host_memory=*/10);
    EXPECT_EQ(losses_of(stored, mesh, 3), losses_of(job, mesh, 3));
    auto run = train::assemble(stored, mesh);
    const auto& regions = *run.parallel.stored();
    EXPECT_GT(regions.stored_bytes(), 2 * regions.memory_bytes());
    expect_moved_as_predicted(run, regions);
  });
}

TEST(Offload, GradientsOfSeveralTimesTheBuffersAreReadAndWrittenForEachMicroBatch) {
  const SharedFolder folder;
  on_mesh({.shape = {.dp_shard = 2}}, [&](const mesh::DeviceMesh& mesh) {
    auto job = job_of({"full_shard", {.dp_shard = 2}}, "tiny");
    job.model.num_layers = 8;
    job.train.micro_batch = 2;  // three of them
    auto stored = with_gradients(on_drives(job, folder));
    stored.offload.host_memory = 12;
    EXPECT_EQ(losses_of(stored, mesh, 3), losses_of(job, mesh, 3));
    auto run = train::assemble(stored, mesh);
    const auto& regions = *run.parallel.stored_gradients();
    EXPECT_GT(regions.stored_bytes(), 2 * regions.memory_bytes());
    expect_moved_as_predicted(run, regions);
    EXPECT_LT(run.parallel.memory().gradients, regions.stored_bytes());
  });
}

// A rank alone adds a micro-batch's products to what is there: to what was on drives, too.
TEST(Offload, GradientsOfARankAloneAreAddedUpAsInMemory) {
  const SharedFolder folder;
  on_mesh({.shape = {}}, [&](const mesh::DeviceMesh& mesh) {
    for (const auto* placement : {"full_shard", "shard_gradients"}) {
      for (const auto compute : {FloatType::fp32, FloatType::bf16}) {
        auto job = job_of({placement, {}}, "tiny");
        job.train.micro_batch = 2;  // six of them
        job.precision.compute = compute;
        auto stored = with_gradients(on_drives(job, folder));
        stored.offload.host_memory = 32;
        EXPECT_EQ(losses_of(stored, mesh, 3), losses_of(job, mesh, 3)) << placement;
      }
    }
  });
}

class OtherAxesTest : public ::testing::TestWithParam<mesh::MeshShape> {};

TEST_P(OtherAxesTest, ChangeNoBitEither) {
  const SharedFolder folder;
  const auto& shape = GetParam();
  on_mesh({.shape = shape}, [&](const mesh::DeviceMesh& mesh) {
    auto job = over(recorded_job(/*seq_len=*/8, /*global_batch=*/16), shape);
    job.model.path = "tests/fixtures/experts_micro";
    job.precision.compute = FloatType::bf16;
    if (shape.pp > 1) job.train.micro_batch = 2;
    EXPECT_EQ(losses_of(all_on_drives(job, folder), mesh, 3), losses_of(job, mesh, 3));
    EXPECT_EQ(losses_of(on_drives(job, folder), mesh, 3), losses_of(job, mesh, 3));
    if (shape.pp == 1) {
      EXPECT_EQ(losses_of(with_gradients(all_on_drives(job, folder)), mesh, 3),
                losses_of(job, mesh, 3));
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Meshes, OtherAxesTest,
                         ::testing::Values(mesh::MeshShape{.dp_shard = 2, .ep = 2},
                                           mesh::MeshShape{.dp_shard = 4, .ep = 2},
                                           mesh::MeshShape{.dp_shard = 2, .tp = 2},
                                           mesh::MeshShape{.pp = 2, .dp_shard = 2}),
                         [](const auto& shape) {
                           return fmt::format("ep{}_tp{}_pp{}_of_{}", shape.param.ep,
                                              shape.param.tp, shape.param.pp,
                                              shape.param.num_ranks());
                         });

// Where a rank of a pipeline has nothing on drives, all meet before the first step nevertheless.
TEST(Offload, APreflightIsOfAllRanks) {
  const SharedFolder folder;
  on_mesh({.shape = {.pp = 2}}, [&](const mesh::DeviceMesh& mesh) {
    auto job = over(recorded_job(/*seq_len=*/64, /*global_batch=*/12), mesh.shape(),
                    parallel::Placement::replicate);
    job.model.preset = "micro";
    job.model.num_layers = 3;
    job.adapter.type = models::AdapterType::lora;
    job.adapter.rank = 4;
    job.parallel.stage_layers = {3, 0};
    job.parallel.offload_fraction = 0.5;
    job = on_drives(std::move(job), folder);
    const auto run = train::assemble(job, mesh);
    const auto* stored = run.optimizer.stored();
    const auto ranks_with = torch::tensor(stored == nullptr ? 0 : 1);
    run.world.all_reduce(ranks_with).wait();
    EXPECT_EQ(ranks_with.item<int64_t>(), 1);
    EXPECT_FALSE(train::preflight(run).empty());
  });
}

// A rank has four of the eight experts, fewer than a token may choose among four groups of two.
TEST(Offload, APreflightMeasuresARanksExperts) {
  const SharedFolder folder;
  on_mesh({.shape = {.dp_shard = 2, .ep = 2}}, [&](const mesh::DeviceMesh& mesh) {
    auto job = over(recorded_job(/*seq_len=*/16, /*global_batch=*/4), mesh.shape(),
                    parallel::Placement::full_shard);
    job.model.path = "tests/fixtures/families/deepseek_v3";
    job = on_drives(std::move(job), folder);
    const auto run = train::assemble(job, mesh);
    EXPECT_FALSE(train::preflight(run).empty());
  });
}

TEST(Offload, WhatCannotBeIsRefusedInALine) {
  const auto refusal = [](auto change) -> std::string {
    auto job = job_of(kLayouts[0]);
    job.parallel.offload_optimizer = OffloadOptimizer::nvme;
    change(job);
    try {
      config::check(job, {});
    } catch (const UserError& error) {
      return error.what();
    }
    return "";
  };
  using ::testing::HasSubstr;
  EXPECT_EQ(refusal([](auto&) {}), "");
  EXPECT_EQ(refusal([](auto& job) { job.parallel.offload_params = OffloadParams::host; }), "");
  const auto with_parameters = [&](auto change) {
    return refusal([&](auto& job) {
      job.parallel.offload_params = OffloadParams::nvme;
      job.parallel.placement = parallel::Placement::full_shard;
      change(job);
    });
  };
  EXPECT_EQ(with_parameters([](auto&) {}), "");
  EXPECT_THAT(
      with_parameters(
          [](auto& job) { job.parallel.placement = parallel::Placement::shard_gradients; }),
      HasSubstr("parallel.offload_params: nvme: expected parallel.placement full_shard; set "
                "it, or parallel.offload_params to false"));
  EXPECT_THAT(
      with_parameters([](auto& job) { job.parallel.offload_optimizer = OffloadOptimizer::none; }),
      HasSubstr("nvme: expected parallel.offload_optimizer nvme"));
  EXPECT_THAT(
      with_parameters([](auto& job) { job.optimizer.type = optim::OptimizerType::muon; }),
      HasSubstr("nvme: expected an optimizer.type other than muon, whose matrices are whole"));
  EXPECT_THAT(refusal([](auto& job) { job.offload.block_size = 6; }),
              HasSubstr("offload.block_size: expected a multiple of 4 KiB, got 6"));
  EXPECT_THAT(refusal([](auto& job) { job.optimizer.type = optim::OptimizerType::sgd; }),
              HasSubstr("sgd without momentum keeps no states"));
  EXPECT_THAT(
      refusal([](auto& job) { job.parallel.offload_gradients = parallel::OffloadGradients::nvme; }),
      HasSubstr("parallel.offload_gradients: has no effect here: it needs "
                "parallel.placement shard_gradients or full_shard"));
  EXPECT_THAT(refusal([](auto& job) {
                job.parallel.offload_optimizer = OffloadOptimizer::host;
                job.offload.buffers = 8;
              }),
              HasSubstr("offload.buffers: has no effect here: it needs "
                        "parallel.offload_optimizer nvme"));
}

}  // namespace
}  // namespace tessera::parity
