// The units of a rank: what is gathered, reduced and freed together, and how each keeps its
// parameters (docs/data_parallel.md).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/config/run_config.h"
#include "tessera/plan/buffer.h"
#include "tessera/plan/rank_part.h"

namespace tessera::plan {

/// What is gathered, reduced and freed together.
struct UnitPlan {
  std::string name;
  std::vector<BufferPlan> buffers;
  size_t stage = 0;             ///< of the rank's stages
  PipelinePlan::Layers layers;  ///< transformer blocks in it
  bool predicts = false;        ///< holds the head
  int64_t table = 0;            ///< elements that another rank of the pipeline has as well
};

/// The rank's units, and the ranks that share them. `parallel.units` model is one unit a stage;
/// size and name count as block, of which they hold less. With an adapter a unit has a buffer of what
/// is frozen and one of what is trained; with ep, of each one of experts as well. What is trained of all
/// ranks comes last. `shape`: of the whole model. `device_is_host`: offloading
/// moves nothing, as on a CPU.
std::vector<UnitPlan> plan_units(const config::RunConfig& config, const models::ModelShape& shape,
                                 const RankPart& part, bool device_is_host);

}  // namespace tessera::plan
