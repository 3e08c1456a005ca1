#include "tessera/optim/norm.h"

#include <ATen/Parallel.h>

#include <numeric>
#include <vector>

namespace tessera::optim {
namespace {

constexpr int64_t kBlock = 4096;

// Eight double sums in parallel: a plain loop that the compiler turns into vectors.
double squared_norm_of_block(const float* values, int64_t count) {
  double sums[8] = {};
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    for (int lane = 0; lane < 8; ++lane) {
      const double value = values[i + lane];
      sums[lane] += value * value;
    }
  }
  for (; i < count; ++i) sums[0] += static_cast<double>(values[i]) * values[i];
  return std::accumulate(std::begin(sums), std::end(sums), 0.0);
}

double squared_norm_of(const torch::Tensor& tensor) {
  TORCH_INTERNAL_ASSERT(tensor.is_contiguous());
  if (tensor.scalar_type() != torch::kFloat32 || !tensor.is_cpu()) {
    return tensor.to(torch::kFloat64).square().sum().item<double>();
  }
  const float* const values = tensor.const_data_ptr<float>();
  const int64_t count = tensor.numel();
  const int64_t num_blocks = (count + kBlock - 1) / kBlock;
  std::vector<double> sums(static_cast<size_t>(num_blocks));
  at::parallel_for(0, num_blocks, 16, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      const int64_t first = block * kBlock;
      sums[static_cast<size_t>(block)] = squared_norm_of_block(values + first, std::min(kBlock, count - first));
    }
  });
  return std::accumulate(sums.begin(), sums.end(), 0.0);
}

}  // namespace

double squared_norm(std::span<const torch::Tensor> tensors) {
  double sum = 0;
  for (const auto& tensor : tensors) sum += squared_norm_of(tensor);
  return sum;
}

}  // namespace tessera::optim
