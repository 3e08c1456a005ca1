#include "tessera/kernels/reference.h"

#include <ATen/ATen.h>

#include "tessera/kernels/random_bits.h"

namespace tessera::kernels {
namespace {

/// The dtype that sums are taken in: float32, or float64 where that is what comes.
at::ScalarType wide(at::ScalarType dtype) {
  return dtype == at::kDouble ? at::kDouble : at::kFloat;
}

}  // namespace

at::Tensor rms_norm_reference(const at::Tensor& x, const at::Tensor& weight, double eps) {
  const auto v = x.to(wide(x.scalar_type()));
  const auto normed = v * at::rsqrt(v.square().mean(-1, /*keepdim=*/true) + eps);
  return weight * normed.to(x.scalar_type());
}

std::tuple<at::Tensor, at::Tensor> add_rms_norm_reference(const at::Tensor& x,
                                                          const at::Tensor& residual,
                                                          const at::Tensor& weight, double eps) {
  const auto sum = x + residual;
  return {sum, rms_norm_reference(sum, weight, eps)};
}

at::Tensor rotary_reference(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
  const auto c = cos.to(x.scalar_type()).unsqueeze(-2);  // [.., T, 1, E] against [B, T, H, E]
  const auto s = sin.to(x.scalar_type()).unsqueeze(-2);
  const auto halves = x.chunk(2, -1);
  return x * c + at::cat({-halves[1], halves[0]}, -1) * s;
}

at::Tensor swiglu_reference(const at::Tensor& gate, const at::Tensor& up) {
  return at::silu(gate) * up;
}

at::Tensor clamped_swiglu_reference(const at::Tensor& gate, const at::Tensor& up,
                                    const GateClamp& clamp) {
  const double limit = clamp.limit;
  const auto g = gate.clamp_max(limit);
  return g * at::sigmoid(g * static_cast<double>(clamp.scale)) * (up.clamp(-limit, limit) + 1);
}

at::Tensor dropout_reference(const at::Tensor& x, double probability, const DropoutKey& key) {
  const auto position = at::arange(key.first_position, key.first_position + x.numel(),
                                   x.options().dtype(at::kLong).requires_grad(false));
  const auto bits = random_bits(position, key);
  const auto kept = bits.ge(int64_t{drop_threshold(probability)}).view(x.sizes());
  return at::where(kept, x / (1 - probability), at::zeros({}, x.options().requires_grad(false)));
}

at::Tensor gelu_tanh_reference(const at::Tensor& x) { return at::gelu(x, "tanh"); }

at::Tensor linear_cross_entropy_reference(const at::Tensor& hidden, const at::Tensor& weight,
                                          const at::Tensor& targets, double scale,
                                          int64_t ignore_index) {
  const auto logits = at::linear(hidden, weight).to(wide(hidden.scalar_type()));
  return scale * at::cross_entropy_loss(logits, targets, {}, at::Reduction::Sum, ignore_index);
}

}  // namespace tessera::kernels
