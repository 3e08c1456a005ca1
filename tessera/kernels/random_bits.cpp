#include "tessera/kernels/random_bits.h"

#include <ATen/ATen.h>

namespace tessera::kernels {

// The bits of cpu/flat_impl.h, 32 at a time in int64.
at::Tensor random_bits(const at::Tensor& positions, const DropoutKey& key) {
  constexpr int64_t kLow = 0xffffffff;
  const auto mixed = [](at::Tensor bits) {
    bits = bits.bitwise_xor(bits.bitwise_right_shift(16)).mul(0x7feb352d).bitwise_and(kLow);
    bits = bits.bitwise_xor(bits.bitwise_right_shift(15)).mul(0x846ca68b).bitwise_and(kLow);
    return bits.bitwise_xor(bits.bitwise_right_shift(16));
  };
  const auto [first, second] = random_key(key);
  const auto low = mixed(positions.bitwise_and(kLow).bitwise_xor(int64_t{first}));
  const auto high = positions.bitwise_right_shift(32).mul(0x9e3779b1);
  return mixed((low + high + int64_t{second}).bitwise_and(kLow));
}

at::Tensor random_bits_like(const at::Tensor& like, const DropoutKey& key) {
  const auto first = key.first_position;
  const auto positions =
      at::arange(first, first + like.numel(), like.options().dtype(at::kLong).requires_grad(false));
  return random_bits(positions, key).view(like.sizes());
}

at::Tensor gumbel_noise(const at::Tensor& like, const DropoutKey& key) {
  // The middle of each of 2^32 equal parts of (0, 1): its logarithm is finite.
  const auto uniform = random_bits_like(like, key).to(at::kDouble).add_(0.5).mul_(0x1p-32);
  return uniform.log_().neg_().log_().neg_().to(at::kFloat);
}

}  // namespace tessera::kernels
