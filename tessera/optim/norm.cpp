#include "tessera/optim/norm.h"

#include "tessera/kernels/flat.h"

namespace tessera::optim {

double squared_norm(std::span<const torch::Tensor> tensors) {
  double sum = 0;
  for (const auto& tensor : tensors) {
    const bool plain = !tensor.is_cpu() || tensor.scalar_type() == torch::kFloat64;
    sum += plain ? tensor.to(torch::kFloat64).square().sum().item<double>()
                 : kernels::sum_of_squares(tensor);
  }
  return sum;
}

double clip_factor(double norm, double max_norm) {
  if (max_norm == 0) return 1;
  const double factor = max_norm / (norm + 1e-6);
  return factor >= 1 ? 1 : factor;  // a NaN goes on
}

}  // namespace tessera::optim
