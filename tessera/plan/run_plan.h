// The plan of a run: what a configuration means, decided once, before any tensor or process exists.
// The engine is built from it (train/assemble.cpp); memory and traffic are computed from it
// (predict/).
#pragma once

#include <optional>
#include <vector>

#include "tessera/config/run_config.h"
#include "tessera/models/shape.h"
#include "tessera/plan/fp8_layers.h"
#include "tessera/plan/pipeline.h"
#include "tessera/plan/rank_part.h"
#include "tessera/plan/units.h"

namespace tessera::plan {

/// What one rank has, and keeps how.
struct RankPlan {
  RankPart part;
  std::vector<UnitPlan> units;
};

struct RunPlan {
  models::ModelShape shape;  ///< of the whole model
  mesh::MeshShape mesh;
  PipelinePlan pipeline;
  std::vector<RankPlan> ranks;  ///< by place in the pipeline
  std::vector<Fp8Layer> fp8;    ///< of the whole model
};

struct PlanOptions {
  bool device_is_host = true;          ///< offloading moves nothing, as on a CPU
  std::optional<LayerCosts> measured;  ///< for parallel.stage_balance measured; none: operations
};

/// The plan of a run of the model on such a mesh. UserError with the key: heads, layers, a schedule
/// or a batch that do not fit the ranks.
RunPlan make_plan(const config::RunConfig& config, const models::ModelShape& shape,
                  const mesh::MeshShape& mesh, const PlanOptions& options = {});

/// The same for `config.parallel.num_ranks` ranks. UserError if the axes do not fit them.
RunPlan make_plan(const config::RunConfig& config, const models::ModelShape& shape,
                  const PlanOptions& options = {});

}  // namespace tessera::plan
