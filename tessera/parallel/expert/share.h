// A model whose experts are shared out over ranks: what a rank keeps of it.
#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <set>
#include <string>

#include "tessera/mesh/mesh.h"

namespace tessera::parallel {

/// Leaves of each mixture in `model` (nn/experts.h; values on the meta device or not) the experts of
/// this rank of the mesh's axis ep, and lets tokens go to the ranks that have theirs (dispatch.h). Where
/// etp is less than tp, ranks of tp that have the same tokens each take their part of them. `overlap_degree`:
/// as Overlap has it.
/// Returns the names of the parameters of all experts that are here, for
/// DataParallelOptions::of_experts. To be called once matrices are divided (tensor_parallel) and
/// before data parallelism makes units of the model. Experts that are not apart
/// (mesh::MeshShape::experts_apart): nothing changes, no name.
///
/// ValueError: experts that the ranks cannot share out evenly.
std::set<std::string> share_experts(torch::nn::Module& model, const mesh::DeviceMesh& mesh,
                                    int64_t overlap_degree = 1);

}  // namespace tessera::parallel
