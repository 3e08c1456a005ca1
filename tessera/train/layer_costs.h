// What the parts of a model cost on these ranks, by the clock (parallel.stage_balance measured).
#pragma once

#include "tessera/config/run_config.h"
#include "tessera/mesh/mesh.h"
#include "tessera/plan/pipeline.h"

namespace tessera::train {

/// Seconds that forward and backward of one micro-batch take in the embedding, in a layer and in
/// the head, on the slowest rank, the same on all. Costs a few of each, and the memory of a model
/// of one layer, before the run's own is made. `sizes`: of `mesh`. Collective.
plan::LayerCosts measure_layer_costs(const config::RunConfig& config,
                                     const models::ModelShape& shape, const mesh::DeviceMesh& mesh);

}  // namespace tessera::train
