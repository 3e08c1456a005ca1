#include "tessera/kernels/rotary.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "tessera/autograd/apply.h"
#include "tessera/kernels/fused.h"
#include "tessera/kernels/observed.h"
#include "tessera/kernels/reference.h"

namespace tessera::kernels {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor rotate(const at::Tensor& any, const at::Tensor& cos, const at::Tensor& sin,
                  bool inverse) {
  const auto x = any.stride(-1) == 1 ? any : any.contiguous();
  auto y = at::empty(x.sizes(), x.options());
  const Observed run("tessera::rotary", {x, cos, sin, y});
  fused_kernels(x).rotary({.x = x.const_data_ptr(),
                           .y = y.data_ptr(),
                           .cos = cos.const_data_ptr<float>(),
                           .sin = sin.const_data_ptr<float>(),
                           .batch = x.size(0),
                           .tokens = x.size(1),
                           .heads = x.size(2),
                           .dim = x.size(3),
                           .batch_stride = x.stride(0),
                           .token_stride = x.stride(1),
                           .head_stride = x.stride(2),
                           .table_rows = cos.numel() / x.size(3),
                           .inverse = inverse,
                           .type = element_of(x.scalar_type())});
  return y;
}

struct Rotary : torch::autograd::Function<Rotary> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& cos,
                            const at::Tensor& sin) {
    at::AutoDispatchBelowADInplaceOrView guard;
    ctx->save_for_backward({cos, sin});
    return rotate(x, cos, sin, /*inverse=*/false);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    at::AutoDispatchBelowADInplaceOrView guard;
    const auto saved = ctx->get_saved_variables();
    return {rotate(grads[0], saved[0], saved[1], /*inverse=*/true), {}, {}};
  }
};

// [Order of operations]: frequencies are computed step for step as in transformers'
// modeling_rope_utils, in float32; Python's scalar / tensor is scalar * reciprocal.

/// theta^(2i / D) for i in [0, D / 2).
at::Tensor powers_of(const at::Tensor& theta, int64_t dim) {
  return at::pow(theta, at::arange(0, dim, 2, at::kLong).to(at::kFloat) / dim);
}

at::Tensor llama3_frequencies(const at::Tensor& inv_freq, const RopeScaling& scaling) {
  const auto original = static_cast<double>(scaling.original_max_seq_len);
  const double low_wavelength = original / scaling.low_freq_factor;
  const double high_wavelength = original / scaling.high_freq_factor;
  const auto wavelength = inv_freq.reciprocal() * (2 * std::numbers::pi);
  const auto stretched =
      at::where(wavelength > low_wavelength, inv_freq / scaling.factor, inv_freq);
  const auto smooth = (wavelength.reciprocal() * original - scaling.low_freq_factor) /
                      (scaling.high_freq_factor - scaling.low_freq_factor);
  const auto smoothed = (1 - smooth) * stretched / scaling.factor + smooth * stretched;
  const auto medium = (wavelength >= high_wavelength) & (wavelength <= low_wavelength);
  return at::where(medium, smoothed, stretched);
}

at::Tensor yarn_frequencies(double theta, int64_t dim, const RopeScaling& scaling) {
  const auto powers = powers_of(at::scalar_tensor(theta, at::kDouble), dim);
  // The dimension that turns `turns` times within the original length.
  const auto dimension_of = [&](double turns) {
    const auto original = static_cast<double>(scaling.original_max_seq_len);
    return static_cast<double>(dim) * std::log(original / (turns * 2 * std::numbers::pi)) /
           (2 * std::log(theta));
  };
  double low = dimension_of(scaling.beta_fast), high = dimension_of(scaling.beta_slow);
  if (scaling.truncate) low = std::floor(low), high = std::ceil(high);
  low = std::max(low, 0.0), high = std::min(high, static_cast<double>(dim - 1));
  if (low == high) high += 0.001;  // no ramp of length zero
  const auto ramp = ((at::arange(dim / 2, at::kFloat) - low) / (high - low)).clamp(0, 1);
  const auto kept = 1 - ramp;
  return (scaling.factor * powers).reciprocal() * (1 - kept) + powers.reciprocal() * kept;
}

/// Theta for a sequence of `seq_len` tokens: a float32 tensor once it differs.
at::Tensor dynamic_theta(double theta, int64_t dim, int64_t seq_len, const RopeScaling& scaling) {
  const auto original = scaling.original_max_seq_len;
  if (seq_len <= original) return at::scalar_tensor(theta, at::kDouble);
  const auto length = at::scalar_tensor(seq_len, at::kLong);
  const auto growth = scaling.factor * length / original - (scaling.factor - 1);
  return theta * at::pow(growth, static_cast<double>(dim) / static_cast<double>(dim - 2));
}

at::Tensor inverse_frequencies(int64_t seq_len, int64_t dim, const RotaryTablesOptions& options) {
  const auto theta = at::scalar_tensor(options.theta, at::kDouble);
  if (!options.scaling) return powers_of(theta, dim).reciprocal();
  const auto& scaling = *options.scaling;
  switch (scaling.type) {
    case RopeScalingType::linear:
      return powers_of(theta, dim).reciprocal() / scaling.factor;
    case RopeScalingType::dynamic:
      return powers_of(dynamic_theta(options.theta, dim, seq_len, scaling), dim).reciprocal();
    case RopeScalingType::yarn:
      return yarn_frequencies(options.theta, dim, scaling);
    case RopeScalingType::longrope: {
      const bool is_long = seq_len > scaling.original_max_seq_len;
      const auto& factors = is_long ? scaling.long_factors : scaling.short_factors;
      TORCH_CHECK_VALUE(std::ssize(factors) == dim / 2, "rotary_tables: expected ", dim / 2,
                        " factors of longrope, got ", factors.size());
      return (at::tensor(factors, at::kFloat) * powers_of(theta, dim)).reciprocal();
    }
    case RopeScalingType::llama3:
      return llama3_frequencies(powers_of(theta, dim).reciprocal(), scaling);
  }
  TORCH_INTERNAL_ASSERT(false);
}

}  // namespace

std::tuple<at::Tensor, at::Tensor> rotary_tables(int64_t seq_len, int64_t head_dim,
                                                 const RotaryTablesOptions& options) {
  TORCH_CHECK_VALUE(head_dim > 0 && head_dim % 2 == 0,
                    "rotary_tables: expected an even positive head_dim, got ", head_dim);
  TORCH_CHECK_VALUE(seq_len >= 0, "rotary_tables: expected seq_len >= 0, got ", seq_len);
  const int64_t end = options.first_position + seq_len;
  const auto inv_freq = inverse_frequencies(end, head_dim, options);
  const auto positions = at::arange(options.first_position, end, at::kLong).to(at::kFloat);
  const auto angles = at::outer(positions, inv_freq);  // [T, D / 2]
  const auto both = at::cat({angles, angles}, -1);
  if (!options.scaling || options.scaling->attention_factor == 1) return {both.cos(), both.sin()};
  const double factor = options.scaling->attention_factor;
  return {both.cos() * factor, both.sin() * factor};
}

at::Tensor rotary(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
  TORCH_CHECK_VALUE(x.dim() == 4 && x.size(3) % 2 == 0,
                    "rotary: expected x [B, T, H, E] with even E, got ", x.sizes());
  const bool of_each = cos.dim() == 3 && cos.size(0) == x.size(0) && cos.size(1) == x.size(1);
  const bool of_rows = cos.dim() == 2 && cos.size(0) >= x.size(1);
  TORCH_CHECK_VALUE((of_each || of_rows) && cos.sizes() == sin.sizes() && cos.size(-1) == x.size(3),
                    "rotary: expected cos and sin [>= ", x.size(1), ", ", x.size(3), "] or [",
                    x.size(0), ", ", x.size(1), ", ", x.size(3), "], got ", cos.sizes(), " and ",
                    sin.sizes());
  const auto c = cos.narrow(-2, 0, x.size(1));
  const auto s = sin.narrow(-2, 0, x.size(1));
  if (!can_fuse({x}) || !can_fuse({c, s}) || c.device() != x.device() ||
      c.scalar_type() != at::kFloat || x.numel() == 0) {
    return rotary_reference(x, c, s);
  }
  return autograd::apply<Rotary>(x, c.contiguous(), s.contiguous());
}

}  // namespace tessera::kernels
