#include "tessera/kernels/rms_norm.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/autograd/custom_function.h>

#include "tessera/autograd/apply.h"
#include "tessera/autograd/gradient_sink.h"
#include "tessera/kernels/fused.h"
#include "tessera/kernels/observed.h"
#include "tessera/kernels/reference.h"

namespace tessera::kernels {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// {sum (undefined without a residual), y in `dtype`, reciprocal rms}.
std::tuple<at::Tensor, at::Tensor, at::Tensor> forward(const at::Tensor& x,
                                                       const at::Tensor& residual,
                                                       const at::Tensor& weight, double eps,
                                                       at::ScalarType dtype) {
  const int64_t dim = x.size(-1);
  const int64_t rows = x.numel() / dim;
  auto y = at::empty(x.sizes(), x.options().dtype(dtype));
  auto sum = residual.defined() ? at::empty_like(x) : at::Tensor();
  auto reciprocal_rms = at::empty({rows}, x.options().dtype(at::kFloat));
  const Observed run("tessera::rms_norm", {x, residual, weight, sum, y, reciprocal_rms});
  fused_kernels(x).rms_norm({.x = x.const_data_ptr(),
                             .residual = data_or_null(residual),
                             .weight = weight.const_data_ptr(),
                             .sum = sum.defined() ? sum.data_ptr() : nullptr,
                             .y = y.data_ptr(),
                             .reciprocal_rms = reciprocal_rms.data_ptr<float>(),
                             .rows = rows,
                             .dim = dim,
                             .eps = static_cast<float>(eps),
                             .type = element_of(x.scalar_type()),
                             .y_type = element_of(dtype)});
  return {sum, y, reciprocal_rms};
}

/// {gradient of x, gradient of weight in float32}. Either incoming gradient may be undefined.
std::tuple<at::Tensor, at::Tensor> backward(at::Tensor grad, at::Tensor grad_sum,
                                            const at::Tensor& x, const at::Tensor& weight,
                                            const at::Tensor& reciprocal_rms) {
  if (!grad.defined()) return {grad_sum, at::Tensor()};
  grad = grad.contiguous();
  if (grad_sum.defined()) grad_sum = grad_sum.contiguous();
  const int64_t dim = x.size(-1);
  const int64_t rows = x.numel() / dim;
  auto grad_x = at::empty_like(x);
  const Observed run("tessera::rms_norm_backward",
                     {grad, grad_sum, x, weight, reciprocal_rms, grad_x, weight});
  const auto grad_weight =
      fused_kernels(x).rms_norm_grad({.grad = grad.const_data_ptr(),
                                      .grad_sum = data_or_null(grad_sum),
                                      .x = x.const_data_ptr(),
                                      .weight = weight.const_data_ptr(),
                                      .reciprocal_rms = reciprocal_rms.const_data_ptr<float>(),
                                      .grad_x = grad_x.data_ptr(),
                                      .rows = rows,
                                      .dim = dim,
                                      .type = element_of(x.scalar_type()),
                                      .grad_type = element_of(grad.scalar_type())},
                                     x.device());
  return {grad_x, grad_weight};
}

struct RmsNorm : torch::autograd::Function<RmsNorm> {
  /// `residual`: one or none.
  static variable_list forward(AutogradContext* ctx, const at::Tensor& x, at::TensorList residual,
                               const at::Tensor& weight, double eps, at::ScalarType dtype) {
    at::AutoDispatchBelowADInplaceOrView guard;
    const bool adds = !residual.empty();
    const auto [made, y, reciprocal_rms] =
        kernels::forward(x, adds ? residual[0] : at::Tensor(), weight, eps, dtype);
    const auto& sum = adds ? made : x;
    ctx->saved_data["adds"] = adds;
    ctx->save_for_backward({sum, weight, reciprocal_rms});
    ctx->set_materialize_grads(false);
    return {sum, y};
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const auto sink =
        autograd::gradient_sink(saved[1]);  // outside the guard: .grad() is autograd's
    at::AutoDispatchBelowADInplaceOrView guard;
    auto [grad_x, grad_weight] =
        kernels::backward(grads[1], grads[0], saved[0], saved[1], saved[2]);
    const bool adds = ctx->saved_data["adds"].toBool();
    const bool wanted = ctx->needs_input_grad(adds ? 2 : 1) && grad_weight.defined();
    if (wanted) grad_weight = autograd::hand_over(sink, grad_weight, saved[1].scalar_type());
    variable_list gradients{grad_x, grad_x, wanted ? grad_weight : at::Tensor(), {}, {}};
    if (!adds) gradients.erase(gradients.begin());
    return gradients;
  }
};

}  // namespace

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  return std::get<1>(add_rms_norm(x, {}, weight, eps));
}

std::tuple<at::Tensor, at::Tensor> add_rms_norm(const at::Tensor& x, const at::Tensor& residual,
                                                const at::Tensor& weight, double eps) {
  TORCH_CHECK_VALUE(x.dim() >= 1 && weight.dim() == 1 && weight.size(0) == x.size(-1),
                    "rms_norm: expected weight [", x.dim() >= 1 ? x.size(-1) : 0, "], got ",
                    weight.sizes());
  TORCH_CHECK_VALUE(!residual.defined() || x.sizes() == residual.sizes(),
                    "rms_norm: expected residual ", x.sizes(), ", got ", residual.sizes());
  const bool adds = residual.defined();
  const bool fuses = adds ? can_fuse({x, residual, weight}) : can_fuse({x, weight});
  if (!fuses || x.numel() == 0) {
    // Where both have other dtypes, as under autocast, the norm alone is one pass.
    if (adds) return add_rms_norm(x + residual, {}, weight, eps);
    return {x, rms_norm_reference(x, weight, eps)};
  }
  variable_list added;
  if (adds) added.push_back(residual.contiguous());
  const auto out = autograd::apply<RmsNorm>(x.contiguous(), at::TensorList(added),
                                            weight.contiguous(), eps, norm_result(x));
  return {out[0], out[1]};
}

}  // namespace tessera::kernels
