#include "tessera/optim/muon.h"

#include <algorithm>
#include <cmath>

#include "tessera/kernels/cpu/matmul.h"

namespace tessera::optim {
namespace {

torch::Tensor rounded(torch::Tensor sum) {
  return sum.scalar_type() == torch::kBFloat16 ? sum : sum.copy_(sum.to(torch::kBFloat16));
}

}  // namespace

torch::Tensor muon_direction(const Update& update) {
  auto gradient = scaled_gradient(update);
  const torch::Tensor mean = update.states[0];
  mean.lerp_(gradient, 1 - update.options.muon_momentum);
  const auto direction =
      update.options.muon_nesterov ? gradient.lerp_(mean, update.options.muon_momentum) : mean;
  return direction.to(torch::kBFloat16);
}

torch::Tensor newton_schulz(const torch::Tensor& matrix, int64_t steps) {
  constexpr double kA = 3.4445, kB = -4.7750, kC = 2.0315, kEps = 1e-7;
  TORCH_CHECK_VALUE(matrix.dim() == 2, "muon: expected a matrix, got ", matrix.dim(),
                    " dimensions; leave it to adamw");
  const bool tall = matrix.size(0) > matrix.size(1);
  auto x = matrix.to(torch::kBFloat16, /*non_blocking=*/false, /*copy=*/true);
  if (tall) x = x.t();
  x.div_(x.norm().clamp(kEps));
  // Products are rounded to bfloat16, also where they are taken in float32.
  if (kernels::multiplies_in_float(x)) x = x.to(torch::kFloat32);
  for (int64_t step = 0; step < steps; ++step) {
    const auto gram = rounded(x.mm(x.t()));
    const auto polynomial = rounded(torch::addmm(gram, gram, gram, /*beta=*/kB, /*alpha=*/kC));
    x = rounded(torch::addmm(x, polynomial, x, /*beta=*/kA));
  }
  x = x.to(torch::kBFloat16);
  return tall ? x.t() : x;
}

torch::Tensor orthogonalised(const torch::Tensor& matrix, const OptimizerOptions& options) {
  const auto rows = static_cast<double>(matrix.size(0));
  const auto columns = static_cast<double>(matrix.size(1));
  const double scale = options.muon_scale == MuonScale::original
                           ? std::sqrt(std::max(1.0, rows / columns))
                           : 0.2 * std::sqrt(std::max(rows, columns));
  return newton_schulz(matrix, options.muon_steps).to(torch::kFloat32).mul_(scale);
}

void apply_muon(const Update& update, const torch::Tensor& direction) {
  auto parameter = update.slice.parameter.to(torch::kFloat32);
  parameter.mul_(1 - update.learning_rate * update.slice.weight_decay);
  parameter.add_(direction, -update.learning_rate);
  store(update, parameter);
}

}  // namespace tessera::optim
