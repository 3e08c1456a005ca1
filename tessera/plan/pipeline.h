// Pipeline parallelism as a configuration asks for it: which layers each stage has, and the
// schedule of its micro-batches.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "tessera/config/run_config.h"
#include "tessera/models/shape.h"
#include "tessera/schedule/table.h"

namespace tessera::plan {

/// What the parts of a model cost, in any one unit. A stage costs what its parts do.
struct LayerCosts {
  double embedding = 0, block = 1, head = 0;
};

/// The costs in operations of a forward and backward, for each token.
LayerCosts operations(const models::ModelShape& shape, int64_t seq_len);

/// How many layers each stage has so that the one that costs most costs as little as can be. Of
/// equals the later ones have more: their micro-batches are in flight for less long. Stages between
/// the first and the last have at least one. `num_layers` is at least `num_stages`.
std::vector<int64_t> cut_layers(int64_t num_layers, int num_stages, const LayerCosts& costs);

struct PipelinePlan {
  schedule::Schedule schedule;        ///< proved (schedule/check.h)
  std::vector<int64_t> stage_layers;  ///< the first stage has the embedding, too, the last the head

  struct Layers {
    int64_t begin = 0, end = 0;
  };
  Layers layers_of(int stage) const;
};

/// The plan that parallel.pp, pipeline_schedule, stages_per_rank, stage_layers and stage_balance
/// ask for, over `mesh.pp` ranks. `measured`: for stage_balance measured; without it operations
/// count. UserError with the key: layers that stages cannot share, an unknown schedule, a table for
/// other numbers of ranks, stages or micro-batches, or one that does not pass the check.
PipelinePlan pipeline_plan(const config::RunConfig& config, const models::ModelShape& shape,
                           const mesh::MeshShape& mesh,
                           const std::optional<LayerCosts>& measured = {});

}  // namespace tessera::plan
