// A model cut into the stages of a pipeline: what a rank keeps of it.
#pragma once

#include <torch/nn/module.h>

#include <map>
#include <string>
#include <vector>

#include "tessera/mesh/mesh.h"
#include "tessera/parallel/replication.h"

namespace tessera::parallel {

/// Paths of the modules that each stage calls. Together all that have parameters, each in one
/// stage.
using StageModules = std::vector<std::vector<std::string>>;

/// Takes out of `model` (values on the meta device or not) what this rank's stages do not call;
/// names stay. A parameter that a kept module borrows from one that goes (tied) remains under its
/// name. Returns those that ranks of several stages hold: their gradients are summands. Collective
/// over the mesh's axis pp. `rank_of_stage`: the rank of each stage on that.
///
/// ValueError: a path that `model` lacks. UserError: a tied parameter that is frozen in one stage
/// alone.
std::map<std::string, Replication> keep_stages(torch::nn::Module& model, const StageModules& stages,
                                               const std::vector<int>& rank_of_stage,
                                               const mesh::DeviceMesh& mesh);

}  // namespace tessera::parallel
