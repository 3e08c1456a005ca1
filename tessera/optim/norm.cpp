#include "tessera/optim/norm.h"

#include "tessera/kernels/flat.h"

namespace tessera::optim {

double squared_norm(std::span<const torch::Tensor> tensors) {
  double sum = 0;
  for (const auto& tensor : tensors) {
    sum += kernels::sum_of_squares(tensor.contiguous()).item<double>();
  }
  return sum;
}

double clip_factor(double norm, double max_norm) {
  if (max_norm == 0) return 1;
  const double factor = max_norm / (norm + 1e-6);
  return factor >= 1 ? 1 : factor;  // a NaN goes on
}

}  // namespace tessera::optim
