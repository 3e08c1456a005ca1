// Tensor parallelism: the matrices of a model divided over ranks that compute it together (Shoeybi
// et al., Megatron-LM, 2019), the rest of it over positions (sequence parallelism; Korthikanti et
// al., 2022).
#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tessera/base/stripe.h"
#include "tessera/mesh/mesh.h"
#include "tessera/nn/tensor_plan.h"
#include "tessera/parallel/replication.h"

namespace tessera::parallel {

struct TensorParallelOptions {
  /// Between divided modules each rank has its part of the positions: fewer activations for the
  /// same bytes sent. Sequences must be multiples of the number of ranks.
  bool sequence_parallel = true;
};

/// What this rank holds of a parameter.
struct TensorPart {
  std::vector<int64_t> shape;  ///< of the whole parameter
  Stripe stripe;               ///< of the whole one, in its order
  mesh::Axis ranks;  ///< that have parts of it, or the whole: of tp; of an expert's, of etp
  Replication replication;
};

/// What this rank holds of each parameter, by the parameter's name.
using TensorParts = std::map<std::string, TensorPart>;

/// Divides `model` over the mesh's axis tp, its experts over etp, as `plan` says: parameters become this rank's part
/// of themselves (in place, values on the meta device or not), and hooks bring activations to where
/// they are needed. Every rank is given the same input; losses are the same on all. To be called
/// before data parallelism makes units of the model. With one rank of tp: nothing changes.
///
/// UserError: heads that the ranks do not divide. ValueError, in one line: a rule that no module
/// matches or whose module is of another kind; a module that two rules match; parameters that none
/// does.
TensorParts tensor_parallel(torch::nn::Module& model, const nn::TensorPlan& plan,
                            const mesh::DeviceMesh& mesh,
                            const TensorParallelOptions& options = {});

}  // namespace tessera::parallel
