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

}  // namespace tessera::optim
