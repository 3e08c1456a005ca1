// Muon: momentum, orthogonalised (Jordan et al., Muon: An optimizer for hidden layers in neural
// networks, 2024), with the arithmetic of torch.optim.Muon.
#pragma once

#include <torch/types.h>

#include <cstdint>

#include "tessera/optim/algorithm.h"

namespace tessera::optim {

/// [n] bfloat16: this step's momentum of a slice of matrices, before it is orthogonalised.
torch::Tensor muon_direction(const Update& update);

/// The nearest half-orthogonal matrix of `matrix` [m, n], approximately: `steps` of Newton and
/// Schulz's iteration with Jordan's coefficients, in bfloat16, which bring singular values to about
/// 0.7 to 1.2. Cost: `steps` times 4 m n min(m, n) + 2 min(m, n)^3 operations.
torch::Tensor newton_schulz(const torch::Tensor& matrix, int64_t steps);

/// newton_schulz() of a whole matrix, as large as `options` say an update is.
torch::Tensor orthogonalised(const torch::Tensor& matrix, const OptimizerOptions& options);

/// Updates the parameters of a slice with its part of orthogonalised matrices.
void apply_muon(const Update& update, const torch::Tensor& direction);

}  // namespace tessera::optim
