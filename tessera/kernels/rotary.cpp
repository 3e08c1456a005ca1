#include "tessera/kernels/rotary.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/autograd/custom_function.h>

#include <numbers>

#include "tessera/kernels/cpu/fused.h"
#include "tessera/kernels/reference.h"

namespace tessera::kernels {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor rotate(const at::Tensor& any, const at::Tensor& cos, const at::Tensor& sin,
                  bool inverse) {
  const auto x = any.stride(-1) == 1 ? any : any.contiguous();
  auto y = at::empty(x.sizes(), x.options());
  const RotaryArgs args{.x = x.const_data_ptr(),
                        .y = y.data_ptr(),
                        .cos = cos.const_data_ptr<float>(),
                        .sin = sin.const_data_ptr<float>(),
                        .tokens = x.size(1),
                        .heads = x.size(2),
                        .dim = x.size(3),
                        .batch_stride = x.stride(0),
                        .token_stride = x.stride(1),
                        .head_stride = x.stride(2),
                        .inverse = inverse};
  const auto& table = fused_table(x.scalar_type());
  at::parallel_for(0, x.size(0) * x.size(1), grain_of_rows(args.heads * args.dim),
                   [&](int64_t begin, int64_t end) { table.rotary(args, begin, end); });
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

/// transformers' _compute_llama3_parameters, in its order of operations: Python's scalar / tensor
/// is scalar * reciprocal.
at::Tensor scaled_frequencies(const at::Tensor& inv_freq, const Llama3RopeScaling& scaling) {
  const double low_wavelength = scaling.original_max_position_embeddings / scaling.low_freq_factor;
  const double high_wavelength =
      scaling.original_max_position_embeddings / scaling.high_freq_factor;
  const auto wavelength = inv_freq.reciprocal() * (2 * std::numbers::pi);
  const auto stretched =
      at::where(wavelength > low_wavelength, inv_freq / scaling.factor, inv_freq);
  const auto smooth = (wavelength.reciprocal() * scaling.original_max_position_embeddings -
                       scaling.low_freq_factor) /
                      (scaling.high_freq_factor - scaling.low_freq_factor);
  const auto smoothed = (1 - smooth) * stretched / scaling.factor + smooth * stretched;
  const auto medium = (wavelength >= high_wavelength) & (wavelength <= low_wavelength);
  return at::where(medium, smoothed, stretched);
}

}  // namespace

std::tuple<at::Tensor, at::Tensor> rotary_tables(int64_t seq_len, int64_t head_dim,
                                                 const RotaryTablesOptions& options) {
  TORCH_CHECK_VALUE(head_dim > 0 && head_dim % 2 == 0,
                    "rotary_tables: expected an even positive head_dim, got ", head_dim);
  TORCH_CHECK_VALUE(seq_len >= 0, "rotary_tables: expected seq_len >= 0, got ", seq_len);
  const auto exponents = at::arange(0, head_dim, 2, at::kLong).to(at::kFloat) / head_dim;
  auto inv_freq = at::pow(options.theta, exponents).reciprocal();
  if (options.llama3) inv_freq = scaled_frequencies(inv_freq, *options.llama3);
  const auto positions =
      at::arange(options.first_position, options.first_position + seq_len, at::kLong)
          .to(at::kFloat);
  const auto angles = at::outer(positions, inv_freq);  // [T, D / 2]
  const auto both = at::cat({angles, angles}, -1);
  return {both.cos(), both.sin()};
}

at::Tensor rotary(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
  TORCH_CHECK_VALUE(x.dim() == 4 && x.size(3) % 2 == 0,
                    "rotary: expected x [B, T, H, D] with even D, got ", x.sizes());
  TORCH_CHECK_VALUE(cos.dim() == 2 && cos.sizes() == sin.sizes() && cos.size(0) >= x.size(1) &&
                        cos.size(1) == x.size(3),
                    "rotary: expected cos and sin [>= ", x.size(1), ", ", x.size(3), "], got ",
                    cos.sizes(), " and ", sin.sizes());
  const auto c = cos.narrow(0, 0, x.size(1));
  const auto s = sin.narrow(0, 0, x.size(1));
  if (!can_fuse({x}) || !can_fuse({c, s}) || c.scalar_type() != at::kFloat || x.numel() == 0) {
    return rotary_reference(x, c, s);
  }
  return Rotary::apply(x, c.contiguous(), s.contiguous());
}

}  // namespace tessera::kernels
