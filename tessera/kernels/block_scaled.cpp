#include "tessera/kernels/block_scaled.h"

#include <ATen/ATen.h>

#include "tessera/base/choices.h"
#include "tessera/kernels/fp8.h"

namespace tessera::kernels {
namespace {

constexpr int64_t kNumbers = optim::kStateBlock;
constexpr float kLargestHalf = 32768;  // sums of two of them are finite
constexpr float kLeastAmax = 1e-30f;

}  // namespace

BlockScaled BlockScaled::blocks(int64_t begin, int64_t end) const {
  return {numbers.slice(0, begin * kNumbers, end * kNumbers), factors.slice(0, begin, end)};
}

at::Tensor unscaled(const BlockScaled& from) {
  auto values = from.numbers.scalar_type() == at::kHalf ? from.numbers.to(at::kFloat)
                                                        : from_fp8(from.numbers, at::kFloat);
  values.view({-1, kNumbers}).mul_(from.factors.unsqueeze(1));
  return values;
}

void scale_into(const at::Tensor& values, const BlockScaled& to,
                const std::optional<StochasticRounding>& rounding) {
  TORCH_INTERNAL_ASSERT(values.numel() == to.factors.numel() * kNumbers);
  const bool half = to.numbers.scalar_type() == at::kHalf;
  const float largest = half ? kLargestHalf : largest_of(Fp8Type::e4m3);
  const auto blocks = values.view({-1, kNumbers});
  const auto wanted = largest / at::amax(blocks.abs(), 1).clamp_min_(kLeastAmax);
  constexpr int32_t kExponent = 0x7f800000;  // a float's without its sign and mantissa
  const auto scales = wanted.view(at::kInt).bitwise_and(kExponent).view(at::kFloat);
  const auto scaled = (blocks * scales.unsqueeze(1)).view({-1});
  if (rounding) {
    round_stochastically(scaled, to.numbers, *rounding);
  } else {
    at::Tensor(to.numbers).copy_(half ? scaled.to(at::kHalf) : to_fp8(scaled, Fp8Type::e4m3));
  }
  at::Tensor(to.factors).copy_(scales.reciprocal());
}

}  // namespace tessera::kernels
