// What the parts of a model cost on these ranks, by the clock (parallel.stage_balance measured).
#pragma once

#include <torch/types.h>

#include "tessera/config/run_config.h"
#include "tessera/mesh/mesh.h"
#include "tessera/plan/pipeline.h"

namespace tessera::train {

/// The rank whose layers are measured.
struct MeasuredRank {
  models::ModelShape shape;  ///< of the model, or of what this rank has of it
  mesh::MeshShape mesh;
  torch::Device device;
  mesh::Axis all;  ///< the ranks that measure at the same time
};

/// Seconds that forward and backward of one micro-batch take in the embedding, in a layer and in
/// the head, on the slowest rank, the same on all. Costs a few of each, and the memory of the largest of
/// them with its gradients. Collective.
plan::LayerCosts measure_layer_costs(const config::RunConfig& config, const MeasuredRank& rank);

}  // namespace tessera::train
