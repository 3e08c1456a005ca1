#include "tessera/parallel/data/fp8_sum.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "tessera/kernels/fp8.h"

namespace tessera::parallel {
namespace {

constexpr auto kSent = kernels::Fp8Type::e4m3;
constexpr int64_t kPartAlignment = 32;  // parts begin at its multiples

torch::Tensor bytes_of(const torch::Tensor& values, float scale) {
  return kernels::to_fp8(values, kSent, scale).view(torch::kByte);
}

torch::Tensor numbers_of(const torch::Tensor& bytes, float scale) {
  return kernels::from_fp8(bytes.view(torch::kFloat8_e4m3fn), torch::kFloat32, 1 / scale);
}

}  // namespace

Fp8Sum::Fp8Sum(mesh::Axis axis, torch::Tensor values, SumResult result)
    : axis_(std::move(axis)), values_(std::move(values)), result_(result) {
  scale_ = shared_scale(values_);
  sent_ = bytes_of(values_, scale_);
  std::vector<int64_t> rows;
  for (int from = 0; from < axis_.size(); ++from) {
    for (int to = 0; to < axis_.size(); ++to) rows.push_back(part(to).size);
  }
  received_ = torch::empty({axis_.size() * part(axis_.rank()).size}, sent_.options());
  work_ = axis_.all_to_all_uneven(received_, sent_, rows);
}

Fp8Sum::Part Fp8Sum::part(int rank) const {
  const int64_t step = kPartAlignment * axis_.size();
  const int64_t size = (values_.numel() + step - 1) / step * kPartAlignment;
  const int64_t begin = std::min(values_.numel(), size * rank);
  return {begin, std::min(values_.numel(), begin + size) - begin};
}

/// By the largest magnitude on any rank; NaN: not all are finite.
float Fp8Sum::shared_scale(const torch::Tensor& values) const {
  float own = 0;
  if (values.numel() > 0) {
    const auto [low, high] = torch::aminmax(values);
    own = torch::maximum(high, low.neg()).to(torch::kFloat32).item<float>();
  }
  // Which of a number and NaN is the larger is not the same everywhere.
  const auto amax = torch::tensor(std::isfinite(own) ? own : std::numeric_limits<float>::infinity())
                        .to(values.device());
  axis_.all_reduce(amax, comm::ReduceOp::max).wait();
  const float largest = amax.item<float>();
  if (!std::isfinite(largest)) return NAN;
  return kernels::fp8_scale(largest, kSent, kernels::Fp8ScaleRule::block);
}

void Fp8Sum::finish() {
  const torch::NoGradGuard no_grad;
  work_.wait();
  sent_.reset();
  const auto own = part(axis_.rank());
  auto sum = torch::zeros({own.size}, values_.options().dtype(torch::kFloat32));
  for (int rank = 0; rank < axis_.size(); ++rank) {
    sum.add_(numbers_of(received_.narrow(0, rank * own.size, own.size), scale_));
  }
  received_.reset();
  if (result_ == SumResult::own_part) {
    values_.narrow(0, own.begin, own.size).copy_(sum);
  } else {
    spread(sum);
  }
}

/// Brings every rank's sum to all.
void Fp8Sum::spread(const torch::Tensor& sum) {
  const float scale = shared_scale(sum);
  const auto own = bytes_of(sum, scale);
  const auto all = torch::empty({values_.numel()}, own.options());
  std::vector<torch::Tensor> parts;
  for (int rank = 0; rank < axis_.size(); ++rank) {
    parts.push_back(all.narrow(0, part(rank).begin, part(rank).size));
  }
  axis_.all_gather_uneven(parts, own).wait();
  for (int rank = 0; rank < axis_.size(); ++rank) {
    const auto [begin, size] = part(rank);
    values_.narrow(0, begin, size).copy_(numbers_of(parts[static_cast<size_t>(rank)], scale));
  }
}

}  // namespace tessera::parallel
