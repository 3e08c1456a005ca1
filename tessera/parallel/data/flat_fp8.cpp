// What of a flat buffer is kept or gathered in 8 bits.
#include <cmath>

#include "tessera/kernels/fp8.h"
#include "tessera/parallel/data/flat_buffer.h"

namespace tessera::parallel {
namespace {

constexpr auto kType = kernels::Fp8Type::e4m3;
// Powers of two: what is rounded twice is rounded once, here and in products.
constexpr auto kRule = kernels::Fp8ScaleRule::block;

float amax_of(const torch::Tensor& values) {
  if (values.numel() == 0) return 0;
  const auto [low, high] = torch::aminmax(values);
  return torch::maximum(high, low.neg()).to(torch::kFloat32).item<float>();
}

}  // namespace

torch::Tensor FlatBuffer::gradient_numbers() const {
  const auto kept = gradient_of_slice();
  if (!plan_.fp8_gradients) return kept;
  return kernels::from_fp8(kept, torch::kFloat32, gradient_factor_.item<float>());
}

void FlatBuffer::keep_gradient(const torch::Tensor& gradient) {
  const float largest = amax_of(gradient);
  const float scale = kernels::fp8_scale(largest, kType, kRule);
  gradient_slice.allocate();
  gradient_slice.tensor().copy_(kernels::to_fp8(gradient, kType, scale));
  // Codes have no infinity: whoever looks for an overflow finds it here.
  gradient_factor_.fill_(std::isfinite(largest) ? 1 / scale : NAN);
}

torch::Tensor FlatBuffer::amax() const {
  auto largest = torch::zeros({static_cast<int64_t>(entries_.size())});
  for (const auto& extent : owned()) {
    // Which of a number and NaN is the larger is not the same everywhere.
    const float own = amax_of(extent.values);
    largest[static_cast<int64_t>(extent.entry)] = std::isnan(own) ? INFINITY : own;
  }
  return largest;
}

void FlatBuffer::share_amax(const torch::Tensor& of_all_ranks) {
  scales_.clear();
  for (int64_t i = 0; i < of_all_ranks.numel(); ++i) {
    const float largest = of_all_ranks[i].item<float>();
    // Codes have no infinity: NaN makes weights of it that no step takes for numbers.
    scales_.push_back(std::isfinite(largest) ? kernels::fp8_scale(largest, kType, kRule) : NAN);
  }
}

std::vector<std::string> FlatBuffer::without_scale() const {
  std::vector<std::string> names;
  for (size_t i = 0; i < scales_.size(); ++i) {
    if (std::isnan(scales_[i])) names.push_back(entries_[i].name);
  }
  return names;
}

void FlatBuffer::encode_slice() {
  TORCH_INTERNAL_ASSERT(!scales_.empty());
  const torch::NoGradGuard no_grad;
  codes.allocate();
  own_part(codes).zero_();
  for (const auto& extent : owned()) {
    own_part(codes)
        .narrow(0, entries_[extent.entry].offset + extent.begin - slice_begin(), extent.length)
        .copy_(kernels::to_fp8(extent.values, kType, scales_[extent.entry]).view(torch::kByte));
  }
}

void FlatBuffer::decode_whole() {
  const torch::NoGradGuard no_grad;
  codes_are_current_ = true;
  const auto& to = receive_whole();
  for (size_t i = 0; i < entries_.size(); ++i) {
    const auto& entry = entries_[i];
    const auto from = codes.tensor().narrow(0, entry.offset, entry.parameter.numel());
    to.narrow(0, entry.offset, entry.parameter.numel())
        .copy_(
            kernels::from_fp8(from.view(torch::kFloat8_e4m3fn), torch::kFloat32, 1 / scales_[i]));
  }
  if (!plan_.keeps_codes) codes.free();
  whole_arrived();
}

/// [P/N] this rank's values as others see them.
torch::Tensor FlatBuffer::rounded_slice() const {
  auto rounded = slice_.to(whole.tensor().scalar_type(), /*non_blocking=*/false, /*copy=*/true);
  if (!has_codes()) return rounded;
  for (const auto& extent : owned()) {
    const float scale = scales_[extent.entry];
    rounded.narrow(0, entries_[extent.entry].offset + extent.begin - slice_begin(), extent.length)
        .copy_(kernels::from_fp8(kernels::to_fp8(extent.values, kType, scale), torch::kFloat32,
                                 1 / scale));
  }
  return rounded;
}

}  // namespace tessera::parallel
