#include "tessera/kernels/linear.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>

namespace tessera::kernels {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Where backward may add the gradient of `weight`; undefined if it must return it.
at::Tensor gradient_sink(const at::Tensor& weight) {
  if (!weight.is_leaf()) return {};
  const auto& grad = weight.grad();
  const bool fits = grad.defined() && grad.is_contiguous() && grad.sizes() == weight.sizes() &&
                    grad.scalar_type() == weight.scalar_type() && grad.device() == weight.device();
  return fits ? grad : at::Tensor();
}

struct Linear : torch::autograd::Function<Linear> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weight,
                            const std::optional<at::Tensor>& bias) {
    at::AutoDispatchBelowADInplaceOrView guard;
    ctx->save_for_backward({weight.requires_grad() ? x : at::Tensor(), weight});
    ctx->saved_data["has_bias"] = bias.has_value();
    ctx->saved_data["x_sizes"] = x.sizes().vec();
    const auto rows = x.reshape({-1, weight.size(1)});
    const auto y = bias ? at::addmm(*bias, rows, weight.t()) : at::mm(rows, weight.t());
    auto sizes = x.sizes().vec();
    sizes.back() = weight.size(0);
    return at::_unsafe_view(y, sizes);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const auto& weight = saved[1];
    auto sink = gradient_sink(weight);  // outside the guard: .grad() is autograd's
    at::AutoDispatchBelowADInplaceOrView guard;
    const auto grad = grads[0].reshape({-1, weight.size(0)});
    variable_list out(3);
    if (ctx->needs_input_grad(0)) {
      out[0] = at::_unsafe_view(at::mm(grad, weight), ctx->saved_data["x_sizes"].toIntVector());
    }
    if (ctx->needs_input_grad(1)) {
      const auto rows = saved[0].reshape({-1, weight.size(1)});
      if (sink.defined()) {
        sink.addmm_(grad.t(), rows);
      } else {
        out[1] = at::mm(grad.t(), rows);
      }
    }
    if (ctx->saved_data["has_bias"].toBool() && ctx->needs_input_grad(2)) out[2] = grad.sum(0);
    return out;
  }
};

}  // namespace

at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  TORCH_CHECK_VALUE(x.dim() >= 1 && weight.dim() == 2 && x.size(-1) == weight.size(1),
                    "linear: expected x [.., ", weight.dim() == 2 ? weight.size(1) : 0, "], got ",
                    x.sizes());
  const auto given = bias.defined() ? std::optional(bias) : std::nullopt;
  return x.numel() == 0 ? at::linear(x, weight, given) : Linear::apply(x, weight, given);
}

}  // namespace tessera::kernels
