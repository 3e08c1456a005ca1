// States on drives: every step is that of the run with all in memory, to the bit, in every placement.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/train/checkpointing.h"
#include "tessera/train/resume.h"
#include "tests/parity/fixture.h"
#include "tests/support/shared_folder.h"
#include "tests/support/train_from.h"

namespace tessera::parity {
namespace {

using parallel::OffloadOptimizer;

struct Layout {
  const char* placement;
  mesh::MeshShape shape;
};

const std::vector<Layout> kLayouts = {{"replicate", {}},
                                      {"replicate", {.dp_replicate = 2}},
                                      {"shard_optimizer", {.dp_shard = 3}},
                                      {"shard_gradients", {.dp_shard = 2}},
                                      {"full_shard", {.dp_shard = 2}},
                                      {"full_shard", {.dp_shard = 3}}};

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

std::vector<double> losses_of(const config::RunConfig& job, const mesh::DeviceMesh& mesh,
                              int64_t steps) {
  config::check(job, {});
  auto run = train::assemble(job, mesh);
  const auto losses = train_from(run, {}, steps);
  if (job.parallel.offload_optimizer == OffloadOptimizer::nvme) {
    const auto* stored = run.optimizer.stored();
    EXPECT_TRUE(stored != nullptr &&
                stored->space().counters().written_bytes >= (steps - 1) * stored->stored_bytes());
    EXPECT_LE(run.optimizer.state_bytes(), 1 << 20);
  }
  return losses;
}

class OffloadParityTest : public ::testing::TestWithParam<size_t> {
 protected:
  static const Layout& layout() { return kLayouts[GetParam()]; }
};

TEST_P(OffloadParityTest, StatesOnDrivesChangeNoBit) {
  const SharedFolder folder;
  on_mesh({.shape = layout().shape}, [&](const mesh::DeviceMesh& mesh) {
    const auto expect_same = [&](const char* what, auto change) {
      SCOPED_TRACE(what);
      auto job = job_of(layout());
      change(job);
      EXPECT_EQ(losses_of(on_drives(job, folder), mesh, 4), losses_of(job, mesh, 4));
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

TEST_P(OffloadParityTest, RunsGoOnWithAndWithoutDrives) {
  const SharedFolder folder;
  on_mesh({.shape = layout().shape}, [&](const mesh::DeviceMesh& mesh) {
    for (const auto type : {optim::OptimizerType::adamw, optim::OptimizerType::adamw8bit}) {
      auto job = job_of(layout());
      job.optimizer.type = type;
      job.checkpoint.every = 2;
      job.checkpoint.overwrite = true;
      job.checkpoint.dir = folder.path() / std::string(text_of(type)) / "checkpoints";
      job.train.steps = 4;
      const auto stored = on_drives(job, folder);
      auto run = train::assemble(stored, mesh);
      train::Checkpointing checkpointing(run, {});
      const auto losses = train_from(run, {}, 4, &checkpointing);
      for (auto again : {stored, job}) {
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
  EXPECT_EQ(refusal([](auto& job) { job.parallel.offload_params = true; }), "");
  EXPECT_THAT(refusal([](auto& job) { job.offload.block_size = 6; }),
              HasSubstr("offload.block_size: expected a multiple of 4 KiB, got 6"));
  EXPECT_THAT(refusal([](auto& job) { job.optimizer.type = optim::OptimizerType::sgd; }),
              HasSubstr("sgd without momentum keeps no states"));
  EXPECT_THAT(refusal([](auto& job) {
                job.parallel.offload_optimizer = OffloadOptimizer::host;
                job.offload.buffers = 8;
              }),
              HasSubstr("offload.buffers: has no effect here: it needs "
                        "parallel.offload_optimizer nvme"));
}

}  // namespace
}  // namespace tessera::parity
