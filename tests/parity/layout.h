// How the ranks of a parity test share a job: the mesh, and what goes with it.
#pragma once

#include <fmt/format.h>

#include <ostream>
#include <string>
#include <vector>

#include "tests/parity/fixture.h"

namespace tessera::parity {

struct Layout {
  mesh::MeshShape shape;
  std::string placement = "full_shard";
  std::string checkpointing = "none";
  int64_t every = 1;        // block that is checkpointed
  int64_t micro_batch = 0;  // 0: a rank's share, or with pp one sequence
  std::string schedule = "1F1B";
  std::vector<int64_t> stage_layers = {1, 1};
  bool sequence_parallel = true;
  bool reshard_after_forward = true;
  int64_t overlap_degree = 1;
};

// NOLINTNEXTLINE(readability-identifier-naming): GoogleTest looks for this name.
inline void PrintTo(const Layout& layout, std::ostream* out) {
  *out << fmt::format("{} {} {} {} {} {}{} overlap {}", mesh::describe(layout.shape),
                      layout.placement, layout.checkpointing, layout.every, layout.micro_batch,
                      layout.schedule, layout.sequence_parallel ? "" : " no sp",
                      layout.overlap_degree);
}

inline config::RunConfig with_layout(config::RunConfig job, const Layout& layout) {
  job = over(std::move(job), layout.shape, *value_named<parallel::Placement>(layout.placement));
  auto& parallel = job.parallel;
  // Without tp it can have no effect.
  parallel.sequence_parallel = layout.sequence_parallel || layout.shape.tp == 1;
  parallel.reshard_after_forward = layout.reshard_after_forward;
  if (layout.shape.pp > 1) {
    parallel.pipeline_schedule = layout.schedule;
    parallel.stage_layers = layout.stage_layers;
  }
  job.memory.checkpointing = *value_named<memory::CheckpointMode>(layout.checkpointing);
  if (layout.checkpointing != "none") job.memory.checkpoint_every = layout.every;
  job.train.micro_batch = layout.micro_batch;
  job.moe.overlap_degree = layout.overlap_degree;
  config::check(job, {});
  return job;
}

}  // namespace tessera::parity
