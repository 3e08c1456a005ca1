#include "tessera/kernels/linear.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>
#include <utility>

#include "tessera/autograd/deferred_gradients.h"
#include "tessera/autograd/gradient_sink.h"
#include "tessera/autograd/held.h"
#include "tessera/autograd/recompute.h"
#include "tessera/autograd/shared_input.h"
#include "tessera/kernels/autocast.h"
#include "tessera/kernels/cpu/matmul.h"
#include "tessera/kernels/fused.h"

namespace tessera::kernels {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// `rows` [N, I] times `right` [I, O], plus `bias` [O] if there is one.
at::Tensor product(const at::Tensor& rows, const at::Tensor& right,
                   const std::optional<at::Tensor>& bias = {}) {
  auto y = at::empty({rows.size(0), right.size(1)}, rows.options());
  if (bias) y.copy_(*bias);  // to every row
  multiply(y, rows, right, /*accumulate=*/bias.has_value());
  return y;
}

/// The weight's gradient [O, I], or [I, O]: added to `sink` if there is one.
at::Tensor weight_gradient(const at::Tensor& sink, const at::Tensor& x, const at::Tensor& grad,
                           const at::Tensor& weight, bool in_out,
                           const LinearProductsPtr& products) {
  const auto rows = x.reshape({-1, x.size(-1)}).contiguous();
  if (products) return products->weight_gradient(sink, rows, grad, in_out, weight.options());
  const auto& left = in_out ? rows : grad;
  const auto& right = in_out ? grad : rows;
  return multiply_into(sink, left.t(), right, weight.options());
}

struct Linear : torch::autograd::Function<Linear> {
  /// `operand`: the weight as the products take it, if that is another tensor (autocast).
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weight,
                            const std::optional<at::Tensor>& bias,
                            const std::optional<at::Tensor>& operand, bool in_out,
                            const ProductOverRanksPtr& over_ranks,
                            const LinearProductsPtr& products) {
    at::AutoDispatchBelowADInplaceOrView guard;
    const auto& used = operand ? *operand : weight;
    const auto* shared = autograd::shared_as(x);
    const auto& kept = shared != nullptr ? shared->kept : x;
    ctx->save_for_backward({weight.requires_grad() ? kept : at::Tensor(), weight,
                            bias.value_or(at::Tensor()), operand.value_or(at::Tensor())});
    if (shared != nullptr) autograd::hold(ctx, "shared", shared->by);
    ctx->saved_data["in_out"] = in_out;
    ctx->saved_data["x_sizes"] = x.sizes().vec();
    if (over_ranks) autograd::hold(ctx, "over_ranks", over_ranks);
    if (products) autograd::hold(ctx, "products", products);
    if (const auto& deferred = autograd::DeferScope::current())
      autograd::hold(ctx, "deferred", deferred);
    const auto rows = x.reshape({-1, x.size(-1)});
    const auto right = in_out ? used : used.t();  // [I, O]
    const auto multiplied = [&](const std::optional<at::Tensor>& added) {
      if (!products) return product(rows, right, added);
      auto y = products->forward(rows.contiguous(), right.t());
      return added ? y.add_(added->to(y.scalar_type())) : y;
    };
    auto sizes = x.sizes().vec();
    sizes.back() = right.size(1);
    return autograd::compute_once(1, [&]() -> variable_list {
      if (over_ranks) {
        auto y = over_ranks->sum(at::_unsafe_view(multiplied({}), sizes));
        return {bias ? y.add_(bias->to(y.scalar_type())) : y};
      }
      return {at::_unsafe_view(multiplied(bias), sizes)};
    })[0];
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const auto &x = saved[0], &weight = saved[1], &bias = saved[2], &operand = saved[3];
    const bool in_out = ctx->saved_data["in_out"].toBool();
    // Outside the guard: .grad() is autograd's.
    const auto weight_sink = autograd::gradient_sink(weight);
    const auto bias_sink = autograd::gradient_sink(bias);
    at::AutoDispatchBelowADInplaceOrView guard;
    const auto as_rows = [](const at::Tensor& y) {
      return y.reshape({-1, y.size(-1)}).contiguous();
    };
    const auto grad_of_result = as_rows(grads[0]);
    auto grad = grad_of_result;  // of the product
    if (const auto* sum = autograd::held<ProductOverRanksPtr>(ctx, "over_ranks")) {
      grad = as_rows((*sum)->gradient(grads[0]));
    }
    const auto* held = autograd::held<LinearProductsPtr>(ctx, "products");
    const auto products = held != nullptr ? *held : nullptr;
    variable_list out(7);
    if (ctx->needs_input_grad(0)) {
      const auto& used = operand.defined() ? operand : weight;
      const auto out_in = in_out ? used.t() : used;
      out[0] = at::_unsafe_view(
          products ? products->input_gradient(grad, out_in) : product(grad, out_in),
          ctx->saved_data["x_sizes"].toIntVector());
    }
    if (ctx->needs_input_grad(1)) {
      const auto* shared = autograd::held<autograd::SharedInputPtr>(ctx, "shared");
      const auto* deferred = autograd::held<autograd::DeferredGradientsPtr>(ctx, "deferred");
      const auto add = [grad, weight, in_out, products](const at::Tensor& input) {
        const auto sink = autograd::gradient_sink(weight);
        at::AutoDispatchBelowADInplaceOrView guard;
        weight_gradient(sink, input, grad, weight, in_out, products);
      };
      if (weight_sink.defined() && shared != nullptr && ctx->needs_input_grad(0)) {
        (*shared)->add(x, add);
      } else if (weight_sink.defined() && deferred != nullptr) {
        (*deferred)->add([x, add] { add(x); });
      } else {
        out[1] = weight_gradient(weight_sink, shared != nullptr ? (*shared)->restore(x) : x, grad,
                                 weight, in_out, products);
      }
    }
    if (bias.defined() && ctx->needs_input_grad(2)) {
      out[2] = autograd::hand_over(bias_sink, sum_of_rows(grad_of_result), bias.scalar_type());
    }
    return out;
  }
};

at::Tensor apply(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, bool in_out,
                 const ProductOverRanksPtr& over_ranks, const LinearProductsPtr& products) {
  const int64_t in = weight.dim() == 2 ? weight.size(in_out ? 0 : 1) : 0;
  TORCH_CHECK_VALUE(x.dim() >= 1 && weight.dim() == 2 && x.size(-1) == in,
                    "linear: expected x [.., ", in, "], got ", x.sizes());
  const auto given = bias.defined() ? std::optional(bias) : std::nullopt;
  if (x.numel() == 0 && !over_ranks) return at::linear(x, in_out ? weight.t() : weight, given);
  const auto operand = is_autocast(weight) ? std::optional(autocast_weight(weight)) : std::nullopt;
  return Linear::apply(autocast(x), weight, given, operand, in_out, over_ranks, products);
}

}  // namespace

at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                  const ProductOverRanksPtr& over_ranks, const LinearProductsPtr& products) {
  return apply(x, weight, bias, /*in_out=*/false, over_ranks, products);
}

at::Tensor linear_in_out(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                         const ProductOverRanksPtr& over_ranks, const LinearProductsPtr& products) {
  return apply(x, weight, bias, /*in_out=*/true, over_ranks, products);
}

}  // namespace tessera::kernels
