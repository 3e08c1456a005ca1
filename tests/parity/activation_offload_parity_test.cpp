// What checkpointed blocks keep, on drives: every step is that of the run with all in memory, to the bit, and the
// memory and the traffic are those of the estimates.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/kernels/cpu/memory.h"
#include "tessera/predict/activations.h"
#include "tessera/predict/drives.h"
#include "tessera/predict/step_memory.h"
#include "tessera/train/preflight.h"
#include "tests/parity/layout.h"
#include "tests/support/shared_folder.h"
#include "tests/support/train_from.h"

namespace tessera::parity {
namespace {

using memory::CheckpointMode, memory::OffloadActivations;
using ::testing::HasSubstr;

config::RunConfig job_of(const std::string& preset, int64_t global_batch) {
  auto job = recorded_job(/*seq_len=*/64, global_batch);
  job.model.preset = preset;
  return job;
}

/// The job with activations on drives, which go through as little memory as there may be.
config::RunConfig on_drives(config::RunConfig job, const SharedFolder& folder) {
  job.memory.offload_activations = OffloadActivations::nvme;
  job.offload.paths = {folder.path() / "a", folder.path() / "b"};
  job.offload.host_memory = 1;
  job.offload.block_size = 4;
  job.offload.any_file_system = true;
  return job;
}

/// The optimizer's states and, where they can be, the parameters, too.
config::RunConfig all_on_drives(config::RunConfig job, const SharedFolder& folder) {
  job = on_drives(std::move(job), folder);
  job.offload.host_memory = 4;
  job.parallel.offload_optimizer = parallel::OffloadOptimizer::nvme;
  if (job.parallel.placement == parallel::Placement::full_shard)
    job.parallel.offload_params = parallel::OffloadParams::nvme;
  return job;
}

std::vector<double> losses_of(const config::RunConfig& job, const mesh::DeviceMesh& mesh) {
  config::check(job, {});
  auto run = train::assemble(job, mesh);
  auto losses = train_from(run, {}, 3);
  if (job.memory.offload_activations == OffloadActivations::nvme) {
    // Nothing goes where the only block that is checkpointed has a frozen embedding before it.
    const bool any = predict::in_flight(job, run.rank_plan().part).away > 0;
    EXPECT_EQ(run.activations->most_bytes() > 0, any);
    int64_t memory = run.activations->memory_bytes();
    if (const auto* slices = run.parallel.stored()) memory += slices->memory_bytes();
    EXPECT_LE(memory + (run.optimizer.stored() ? run.optimizer.state_bytes() : 0),
              job.offload.host_memory << 20);
  }
  return losses;
}

class ActivationsOnDrivesTest : public ::testing::TestWithParam<Layout> {};

TEST_P(ActivationsOnDrivesTest, ChangeNoBit) {
  const SharedFolder folder;
  on_mesh({.shape = GetParam().shape}, [&](const mesh::DeviceMesh& mesh) {
    const auto expect_same = [&](const char* what, const auto& change) {
      auto job = with_layout(job_of("micro", /*global_batch=*/12), GetParam());
      change(job);
      const auto expected = losses_of(job, mesh);
      EXPECT_EQ(losses_of(on_drives(job, folder), mesh), expected) << what;
      EXPECT_EQ(losses_of(all_on_drives(job, folder), mesh), expected) << what << ", all";
    };
    expect_same("fp32", [](auto&) {});
    expect_same("bf16", [](auto& job) { job.precision.compute = FloatType::bf16; });
    expect_same("autocast", [](auto& job) {
      job.precision.compute = FloatType::bf16;
      job.precision.autocast = true;
    });
    expect_same("dropout", [](auto& job) {
      job.model.preset = "gpt2", job.model.dropout = 0.2, job.model.vocab_size = 512;
      job.model.dim = 32, job.model.num_heads = 4, job.model.num_layers = 2;
    });
    expect_same("adapter", [](auto& job) {
      job.adapter.type = models::AdapterType::lora;
      job.adapter.dropout = 0.2;
    });
    expect_same("experts", [](auto& job) {
      job.model = {};
      job.model.path = "tests/fixtures/experts_micro";
    });
  });
}

const Layout kLayouts[] = {
    {.placement = "replicate", .checkpointing = "full"},
    {.placement = "replicate", .checkpointing = "selective", .micro_batch = 4},
    {.checkpointing = "full", .every = 2, .micro_batch = 1},
    {.shape = {.dp_replicate = 2}, .placement = "replicate", .checkpointing = "selective"},
    {.shape = {.dp_shard = 3}, .placement = "shard_optimizer", .checkpointing = "full"},
    {.shape = {.dp_shard = 2}, .checkpointing = "feed_forward"},
    {.shape = {.dp_shard = 2}, .checkpointing = "selective", .every = 2},
    {.shape = {.dp_shard = 3}, .checkpointing = "full", .micro_batch = 2},
    {.shape = {.tp = 2}, .placement = "replicate", .checkpointing = "full"},
    {.shape = {.tp = 2},
     .placement = "replicate",
     .checkpointing = "selective",
     .sequence_parallel = false},
    {.shape = {.pp = 2}, .placement = "replicate", .checkpointing = "full", .micro_batch = 2},
    {.shape = {.pp = 2},
     .placement = "replicate",
     .checkpointing = "selective",
     .micro_batch = 2,
     .schedule = "ZB-H1"}};
INSTANTIATE_TEST_SUITE_P(Layouts, ActivationsOnDrivesTest, ::testing::ValuesIn(kLayouts));

class ActivationMemoryTest : public ::testing::TestWithParam<Layout> {};

double mib(double bytes) { return bytes / (1 << 20); }

TEST_P(ActivationMemoryTest, PeaksAndTrafficAreThoseOfTheEstimate) {
  kernels::install_caching_allocator();
  const SharedFolder folder;
  on_mesh({.shape = GetParam().shape}, [&](const mesh::DeviceMesh& mesh) {
    for (const auto compute : {FloatType::fp32, FloatType::bf16}) {
      auto job = job_of("tiny", /*global_batch=*/8);
      job.data.seq_len = 256;
      job.model.num_layers = 8;
      job.precision.compute = compute;
      job = with_layout(job, GetParam());
      const auto plain = [&] {
        auto run = train::assemble(job, mesh);
        train_from(run, {}, 2);
        const auto memory =
            predict::step_memory(job, run.rank_plan(), predict::this_cpu()).peak().total();
        const auto peak = static_cast<double>(run.peak_tensors);
        EXPECT_NEAR(peak / memory, 1, 0.03);
        return peak;
      }();
      const auto stored = on_drives(job, folder);
      auto run = train::assemble(stored, mesh);
      train_from(run, {}, 1);
      const auto before = run.activations->space().counters();
      train_from(run, {.step = 1}, 2);
      const auto after = run.activations->space().counters();

      const auto& rank = run.rank_plan();
      const auto expected = predict::drive_traffic(stored, rank);
      const auto written = static_cast<double>(after.written_bytes - before.written_bytes);
      const auto read = static_cast<double>(after.read_bytes - before.read_bytes);
      EXPECT_NEAR(written / expected.activations_written, 1, 0.02);
      EXPECT_NEAR(read, expected.activations_read, 0.02 * expected.activations_written);
      EXPECT_NEAR(static_cast<double>(run.activations->most_bytes()) / expected.activations, 1,
                  0.01);

      const auto buffers = static_cast<double>(run.activations->memory_bytes());
      const auto found = static_cast<double>(run.peak_tensors) + buffers;
      const auto memory = predict::step_memory(stored, rank, predict::this_cpu()).peak().total();
      const double tolerance = mesh.shape().tp > 1 ? 0.04 : 0.03;
      EXPECT_LE(found / memory, 1 + tolerance) << mib(found) << " " << mib(memory);
      // Of results that came back, those that no gradient reads are free once the second run is over.
      const bool keeps_results = job.memory.checkpointing != memory::CheckpointMode::full;
      EXPECT_GE(found / memory, 1 - (keeps_results ? 0.07 : tolerance))
          << mib(found) << " " << mib(memory);
      // Where much more is away than its buffers hold, the peak falls, but for the block that is back.
      const double saved = plain - found;
      if (expected.activations > 3 * buffers) {
        EXPECT_GT(saved, 0.3 * (expected.activations - buffers)) << mib(saved);
      }
      const auto kept = static_cast<double>(predict::kept_activation_bytes(stored, rank.part));
      EXPECT_NEAR(mib(static_cast<double>(run.peak_activations)), mib(kept),
                  0.1 + 0.01 * mib(kept));
    }
  });
}

const Layout kMeasured[] = {
    {.placement = "replicate", .checkpointing = "full"},
    {.placement = "replicate", .checkpointing = "selective"},
    {.shape = {.dp_shard = 2}, .checkpointing = "full", .micro_batch = 2},
    {.shape = {.dp_shard = 2}, .checkpointing = "selective", .every = 2},
    {.shape = {.tp = 2}, .placement = "replicate", .checkpointing = "selective"},
    {.shape = {.pp = 2},
     .placement = "replicate",
     .checkpointing = "full",
     .micro_batch = 2,
     .stage_layers = {4, 4}}};
INSTANTIATE_TEST_SUITE_P(Layouts, ActivationMemoryTest, ::testing::ValuesIn(kMeasured));

TEST(ActivationsOnDrives, AreToldBeforeTheFirstStep) {
  const SharedFolder folder;
  on_mesh({}, [&](const mesh::DeviceMesh& mesh) {
    auto job = job_of("micro", 12);
    job.memory.checkpointing = CheckpointMode::full;
    const auto run = train::assemble(on_drives(job, folder), mesh);
    const auto lines = train::preflight(run);
    using ::testing::Contains;
    EXPECT_THAT(lines, Contains(HasSubstr("what blocks keep for their backward goes to drives (")));
    EXPECT_THAT(lines, Contains(HasSubstr("a rank's activations take")));
    EXPECT_THAT(lines, Contains(HasSubstr("wear: 10,000 steps write")));
  });
}

TEST(ActivationsOnDrives, WhatCannotBeIsRefusedInALine) {
  const SharedFolder folder;
  on_mesh({}, [&](const mesh::DeviceMesh& mesh) {
    const auto refusal = [&](auto change) -> std::string {
      auto job = on_drives(job_of("micro", 12), folder);
      job.memory.checkpointing = CheckpointMode::full;
      change(job);
      try {
        config::check(job, {});
        train::assemble(job, mesh);
      } catch (const UserError& error) {
        return error.what();
      }
      return "";
    };
    EXPECT_EQ(refusal([](auto&) {}), "");
    EXPECT_THAT(refusal([](auto& job) { job.memory.checkpointing = CheckpointMode::none; }),
                HasSubstr("memory.offload_activations: has no effect here: it needs "
                          "memory.checkpointing other than none"));
    EXPECT_EQ(refusal([](auto& job) {
                job.memory.offload_activations = OffloadActivations::host;
                job.offload = {};
              }),
              "memory.offload_activations: true: expected a GPU, whose activations go to the "
              "host's memory, got a CPU; set nvme (drives), or false");
    EXPECT_THAT(
        refusal([](auto& job) { job.memory.offload_activations = OffloadActivations::none; }),
        HasSubstr("it needs parallel.offload_optimizer or memory.offload_activations nvme"));
    EXPECT_THAT(refusal([](auto& job) { job.offload.buffers = 8; }),
                HasSubstr("offload.buffers: has no effect here: it needs "
                          "parallel.offload_optimizer nvme"));
    EXPECT_THAT(refusal([](auto& job) { job.offload.paths = {"/proc/none"}; }),
                HasSubstr("paths: /proc/none: expected a folder"));
  });
}

}  // namespace
}  // namespace tessera::parity
