#include "tessera/kernels/low_rank_linear.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>
#include <utility>

#include "tessera/autograd/apply.h"
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

at::Tensor flat_rows(const at::Tensor& x) { return x.reshape({-1, x.size(-1)}).contiguous(); }

at::Tensor new_product(const at::Tensor& a, const at::Tensor& b) {
  return multiply_into(/*sink=*/{}, a, b, a.options());
}

struct AdaptedCall {
  FrozenMatrix base;
  double scale = 1;
  ProductOverRanksPtr over_ranks;

  /// A product of the base; of no rows (an expert's that no token chose) there is nothing to be scaled or rounded.
  static at::Tensor product(const FrozenMatrix::Product& by, const at::Tensor& rows,
                            const Factors& more, int64_t columns) {
    return rows.size(0) > 0 ? by(rows, more) : at::empty({0, columns}, rows.options());
  }
};

/// Gradients of A and B, which `forward` saved.
struct AdapterGradients {
  at::Tensor a, b, inner, grad, grad_of_inner;

  /// `read`: what the adapter read. Adds to the parameters' own gradients; gives those that have
  /// none.
  std::pair<at::Tensor, at::Tensor> compute(const at::Tensor& read) const {
    const auto sink_a = autograd::gradient_sink(a), sink_b = autograd::gradient_sink(b);
    at::AutoDispatchBelowADInplaceOrView guard;
    return {a.requires_grad()
                ? multiply_into(sink_a, grad_of_inner.t(), flat_rows(read), a.options())
                : at::Tensor(),
            b.requires_grad() ? multiply_into(sink_b, grad.t(), inner, b.options()) : at::Tensor()};
  }
};

struct LowRankLinear : torch::autograd::Function<LowRankLinear> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x,
                            const std::optional<at::Tensor>& dropped, const at::Tensor& a,
                            const at::Tensor& b, const std::optional<at::Tensor>& bias,
                            const AdaptedCall& call) {
    at::AutoDispatchBelowADInplaceOrView guard;
    const auto* shared = dropped ? nullptr : autograd::shared_as(x);
    const auto& read = dropped ? *dropped : x;
    const auto type = x.scalar_type();
    const auto inner =
        new_product(flat_rows(read), a.to(type).t()).mul_(call.scale);  // [N, R], scaled
    const bool is_trained = a.requires_grad() || b.requires_grad();
    const auto& kept = shared != nullptr ? shared->kept : read;
    ctx->save_for_backward({is_trained ? kept : at::Tensor(), a, b, bias.value_or(at::Tensor()),
                            is_trained ? inner : at::Tensor()});
    if (shared != nullptr) autograd::hold(ctx, "shared", shared->by);
    autograd::hold(ctx, "call", call);
    if (const auto& deferred = autograd::DeferScope::current())
      autograd::hold(ctx, "deferred", deferred);
    ctx->saved_data["x_sizes"] = x.sizes().vec();
    ctx->saved_data["dropped"] = dropped.has_value();
    auto sizes = x.sizes().vec();
    sizes.back() = b.size(0);
    return autograd::compute_once(autograd::Operator::product, 1, [&]() -> variable_list {
      auto y = at::_unsafe_view(
          AdaptedCall::product(call.base.forward, flat_rows(x), {inner, b.to(type).t()}, b.size(0)),
          sizes);
      if (call.over_ranks) y = call.over_ranks->sum(y);
      return {bias ? y.add_(bias->to(type)) : y};
    })[0];
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const auto &read = saved[0], &a = saved[1], &b = saved[2], &bias = saved[3], &inner = saved[4];
    const auto& call = *autograd::held<AdaptedCall>(ctx, "call");
    const bool is_dropped = ctx->saved_data["dropped"].toBool();
    const auto bias_sink = autograd::gradient_sink(bias);
    variable_list out(6);
    // needs_input_grad counts the tensors that are there, and these two are the first.
    AdapterGradients gradients{.a = a, .b = b, .inner = inner, .grad = {}, .grad_of_inner = {}};
    {
      at::AutoDispatchBelowADInplaceOrView guard;
      const auto grad_of_result = flat_rows(grads[0]);
      gradients.grad =
          call.over_ranks ? flat_rows(call.over_ranks->gradient(grads[0])) : grad_of_result;
      const auto type = gradients.grad.scalar_type();
      gradients.grad_of_inner = new_product(gradients.grad, b.to(type)).mul_(call.scale);
      const auto sizes = ctx->saved_data["x_sizes"].toIntVector();
      if (ctx->needs_input_grad(0)) {
        const auto adapters = is_dropped ? Factors{} : Factors{gradients.grad_of_inner, a.to(type)};
        out[0] = at::_unsafe_view(
            AdaptedCall::product(call.base.backward, gradients.grad, adapters, a.size(1)), sizes);
      }
      if (is_dropped && ctx->needs_input_grad(1)) {
        out[1] = at::_unsafe_view(new_product(gradients.grad_of_inner, a.to(type)), sizes);
      }
      if (bias.defined() && bias.requires_grad()) {
        out[4] = autograd::hand_over(bias_sink, sum_of_rows(grad_of_result), bias.scalar_type());
      }
    }
    if (a.requires_grad() || b.requires_grad()) {
      std::tie(out[2], out[3]) = add_gradients(ctx, gradients, read);
    }
    return out;
  }

 private:
  /// Now or later, as `linear`'s.
  static std::pair<at::Tensor, at::Tensor> add_gradients(AutogradContext* ctx,
                                                         const AdapterGradients& gradients,
                                                         const at::Tensor& read) {
    const auto* shared = autograd::held<autograd::SharedInputPtr>(ctx, "shared");
    const auto* deferred = autograd::held<autograd::DeferredGradientsPtr>(ctx, "deferred");
    const auto has_sink = [](const at::Tensor& parameter) {
      return !parameter.requires_grad() || autograd::gradient_sink(parameter).defined();
    };
    const bool can_wait = has_sink(gradients.a) && has_sink(gradients.b);
    const auto add = [gradients](const at::Tensor& input) { gradients.compute(input); };
    if (can_wait && shared != nullptr && ctx->needs_input_grad(0)) {
      (*shared)->add(read, add);
      return {};
    }
    if (can_wait && deferred != nullptr) {
      (*deferred)->add([read, add] { add(read); });
      return {};
    }
    return gradients.compute(shared != nullptr ? (*shared)->restore(read) : read);
  }
};

}  // namespace

at::Tensor low_rank_linear(const at::Tensor& x, const FrozenMatrix& base, const LowRank& adapter,
                           const at::Tensor& bias, const ProductOverRanksPtr& over_ranks,
                           const at::Tensor& dropped) {
  const auto& [a, b, scale] = adapter;
  TORCH_CHECK_VALUE(a.dim() == 2 && b.dim() == 2 && a.size(0) == b.size(1),
                    "low_rank_linear: expected A [R, I] and B [O, R], got ", a.sizes(), " and ",
                    b.sizes());
  for (const auto& matrix : {a, b}) {
    TORCH_CHECK_VALUE(matrix.scalar_type() == at::kFloat || matrix.scalar_type() == x.scalar_type(),
                      "low_rank_linear: expected A and B of float32 or of x's ", x.scalar_type(),
                      ", got ", matrix.scalar_type());
  }
  TORCH_CHECK_VALUE(x.dim() >= 1 && x.size(-1) == a.size(1), "low_rank_linear: expected x [.., ",
                    a.size(1), "], got ", x.sizes());
  const auto given = [](const at::Tensor& tensor) {
    return tensor.defined() ? std::optional(tensor) : std::nullopt;
  };
  const auto read = dropped.defined() ? std::optional(autocast(dropped)) : std::nullopt;
  return autograd::apply<LowRankLinear>(autocast(x), read, a, b, given(bias),
                                        AdaptedCall{base, scale, over_ranks});
}

at::Tensor adapted_row_norms(const FrozenMatrix& base, const LowRank& adapter, at::ScalarType dtype,
                             const std::function<void(const at::Tensor&)>& sum) {
  at::NoGradGuard no_grad;
  const auto a = adapter.a.to(at::kFloat), b = adapter.b.to(at::kFloat);
  const auto crossed = base.forward(adapter.a.to(dtype), {}).t().to(at::kFloat);  // W A^T [O, R]
  const auto squares = base.squared_row_norms() + 2 * adapter.scale * (crossed * b).sum(1) +
                       adapter.scale * adapter.scale * (b.matmul(a.matmul(a.t())) * b).sum(1);
  if (sum) sum(squares);
  return squares.clamp_min_(0).sqrt_();
}

}  // namespace tessera::kernels
