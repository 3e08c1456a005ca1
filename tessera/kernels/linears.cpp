#include "tessera/kernels/linears.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "tessera/autograd/apply.h"
#include "tessera/autograd/deferred_gradients.h"
#include "tessera/autograd/gradient_sink.h"
#include "tessera/autograd/held.h"
#include "tessera/autograd/recompute.h"
#include "tessera/autograd/shared_input.h"
#include "tessera/kernels/adjacent.h"
#include "tessera/kernels/autocast.h"
#include "tessera/kernels/cpu/matmul.h"
#include "tessera/kernels/fused.h"

namespace tessera::kernels {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor out_in(const at::Tensor& weight, bool in_out) { return in_out ? weight.t() : weight; }

/// Are products those of matrices [O, I] as they are? Then one matrix can be several members'.
bool is_joinable(const LinearsOptions& options) {
  return !options.in_out && !options.over_ranks && !options.products;
}

/// What the forward leaves for the backward beside tensors.
struct Kept {
  LinearsOptions options;
  std::vector<int64_t> x_sizes;
  size_t num_biases = 0;
  autograd::SharedInputPtr shared;          ///< or null
  autograd::DeferredGradientsPtr deferred;  ///< or null
};

/// Does it take the products of these rows? Without any (an expert's, over ranks) nothing is to be taken.
bool takes(const LinearProductsPtr& products, const at::Tensor& rows) {
  return products != nullptr && rows.size(0) > 0;
}

at::Tensor matrix_of(const at::Tensor& y) { return y.reshape({-1, y.size(-1)}); }

/// `rows` [N, I] times `right` [I, O], plus a bias [O], which comes in parts.
at::Tensor product(const at::Tensor& rows, const at::Tensor& right, at::TensorList bias) {
  // cuBLAS adds one as it writes the product.
  const bool adds_it = rows.is_cuda() && bias.size() == 1 &&
                       bias[0].scalar_type() == rows.scalar_type() && bias[0].is_contiguous();
  if (adds_it) return at::addmm(bias[0], rows, right);
  auto y = at::empty({rows.size(0), right.size(1)}, rows.options());
  int64_t column = 0;
  for (const auto& part : bias) {
    y.narrow(1, column, part.size(0)).copy_(part);  // to every row
    column += part.size(0);
  }
  multiply(y, rows, right, /*accumulate=*/!bias.empty());
  return y;
}

/// One member's result [N, O].
at::Tensor result_of(const at::Tensor& rows, const at::Tensor& weight, at::TensorList bias,
                     const LinearProductsPtr& products) {
  if (!takes(products, rows)) return product(rows, weight.t(), bias);
  auto y = products->forward(rows.contiguous(), weight);
  return bias.empty() ? y : y.add_(bias[0].to(y.scalar_type()));
}

/// The results of all members, `sizes` but for the last.
variable_list results_of(const at::Tensor& rows, at::TensorList weights, at::TensorList biases,
                         const LinearsOptions& options, std::vector<int64_t> sizes) {
  const auto shaped = [&](const at::Tensor& y) {
    sizes.back() = y.size(1);
    return at::_unsafe_view(y, sizes);
  };
  const auto all = is_joinable(options) && options.layout == ResultLayout::side_by_side
                       ? one_below_other(weights)
                       : at::Tensor();
  if (all.defined()) {
    std::vector<int64_t> widths;
    for (const auto& weight : weights) widths.push_back(weight.size(0));
    return shaped(product(rows, all.t(), biases)).split_with_sizes(widths, -1);
  }
  variable_list results;
  for (size_t i = 0; i < weights.size(); ++i) {
    const auto bias = biases.empty() ? biases : biases.slice(i, 1);
    const auto matrix = out_in(weights[i], options.in_out);
    if (!options.over_ranks) {
      results.push_back(shaped(result_of(rows, matrix, bias, options.products)));
      continue;
    }
    auto sum = options.over_ranks->sum(shaped(result_of(rows, matrix, {}, options.products)));
    results.push_back(bias.empty() ? sum : sum.add_(bias[0].to(sum.scalar_type())));
  }
  return results;
}

/// The gradient of the input [N, I]: the sum of each member's `gradients` [N, O] times its weight.
/// What is undefined adds nothing. `of_weights`: the gradients that a weight's follows from, too.
at::Tensor input_gradient(at::TensorList gradients, at::TensorList weights,
                          at::TensorList of_weights, const LinearsOptions& options) {
  at::Tensor sum;
  for (size_t i = 0; i < gradients.size(); ++i) {
    const auto& gradient = gradients[i];
    if (!gradient.defined()) continue;
    const auto matrix = out_in(weights[i], options.in_out);
    if (takes(options.products, gradient)) {
      const auto part = options.products->input_gradient(gradient, matrix, of_weights[i].defined());
      sum = sum.defined() ? sum.add_(part) : part;
      continue;
    }
    const bool first = !sum.defined();
    if (first) sum = at::empty({gradient.size(0), matrix.size(1)}, gradient.options());
    multiply(sum, gradient, matrix, /*accumulate=*/!first);
  }
  return sum;
}

/// Each weight's gradient, added to its sink if it has one; none where the result's is undefined.
variable_list add_weight_gradients(const at::Tensor& x, at::TensorList gradients,
                                   at::TensorList weights, at::TensorList sinks,
                                   const LinearsOptions& options) {
  const auto rows = matrix_of(x).contiguous();
  variable_list results(weights.size());
  if (is_joinable(options)) {
    const auto together = side_by_side(gradients), sink = one_below_other(sinks);
    if (together.defined() && sink.defined()) {
      multiply(sink, together.t(), rows, /*accumulate=*/autograd::adds_to(sinks));
      return results;
    }
  }
  for (size_t i = 0; i < weights.size(); ++i) {
    if (!gradients[i].defined()) continue;
    const auto gradient = gradients[i].contiguous();
    if (takes(options.products, gradient)) {
      results[i] = options.products->weight_gradient(sinks[i], rows, gradient, options.in_out,
                                                     weights[i].options());
    } else {
      const auto& left = options.in_out ? rows : gradient;
      const auto& right = options.in_out ? gradient : rows;
      results[i] = multiply_into(sinks[i], left.t(), right, weights[i].options());
    }
  }
  return results;
}

/// Where the gradients of those go whose result has one. To be called outside of the guard: .grad() is
/// autograd's.
variable_list sinks_beside(at::TensorList parameters, at::TensorList gradients) {
  variable_list sinks(parameters.size());
  for (size_t i = 0; i < sinks.size(); ++i) {
    if (gradients[i].defined()) sinks[i] = autograd::gradient_sink(parameters[i]);
  }
  return sinks;
}

/// The products of one input with several weights, its members.
struct Linears : torch::autograd::Function<Linears> {
  /// `biases`: of each member, or none; `operands`: the weights as the products take them, if those are other
  /// tensors (autocast).
  static variable_list forward(AutogradContext* ctx, const at::Tensor& x, at::TensorList weights,
                               at::TensorList biases, const std::vector<at::Tensor>& operands,
                               const LinearsOptions& options) {
    at::AutoDispatchBelowADInplaceOrView guard;
    const auto* shared = autograd::shared_as(x);
    const auto& kept = shared != nullptr ? shared->kept : x;
    const bool trains = std::ranges::any_of(weights, &at::Tensor::requires_grad);
    variable_list saved{trains ? kept : at::Tensor()};
    for (const auto& tensors : {weights, biases, at::TensorList(operands)}) {
      saved.insert(saved.end(), tensors.begin(), tensors.end());
    }
    ctx->save_for_backward(std::move(saved));
    ctx->set_materialize_grads(false);
    autograd::hold(ctx, "kept",
                   Kept{.options = options,
                        .x_sizes = x.sizes().vec(),
                        .num_biases = biases.size(),
                        .shared = shared != nullptr ? shared->by : nullptr,
                        .deferred = autograd::DeferScope::current()});
    return autograd::compute_once(autograd::Operator::product, weights.size(), [&] {
      return results_of(matrix_of(x), operands.empty() ? weights : at::TensorList(operands), biases,
                        options, x.sizes().vec());
    });
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    const auto& kept = *autograd::held<Kept>(ctx, "kept");
    const auto& options = kept.options;
    const size_t members = grads.size(), num_biases = kept.num_biases;
    const auto all = at::TensorList(saved);
    const auto weights = all.slice(1, members), biases = all.slice(1 + members, num_biases);
    auto operands = all.slice(1 + members + num_biases);
    if (operands.empty()) operands = weights;

    variable_list of_results(members), of_weights(members), of_biases(num_biases);
    for (size_t i = 0; i < members; ++i) {
      if (!grads[i].defined()) continue;
      of_results[i] = matrix_of(grads[i]);
      const bool has_bias = i < num_biases && ctx->needs_input_grad(1 + members + i);
      if (has_bias) of_biases[i] = of_results[i].contiguous();
      if (options.over_ranks) of_results[i] = matrix_of(options.over_ranks->gradient(grads[i]));
    }
    const auto bias_sinks = sinks_beside(biases, of_biases);
    variable_list out(1 + members + num_biases + 2);
    {
      at::AutoDispatchBelowADInplaceOrView guard;
      for (size_t i = 0; i < num_biases; ++i) {
        if (!of_biases[i].defined()) continue;
        out[1 + members + i] =
            autograd::hand_over(bias_sinks[i], sum_of_rows(of_biases[i]), biases[i].scalar_type());
      }
      const auto together = side_by_side(of_results);
      const auto below =
          together.defined() && is_joinable(options) ? one_below_other(operands) : at::Tensor();
      if (!below.defined()) {
        for (auto& gradient : of_results) {
          if (gradient.defined()) gradient = gradient.contiguous();
        }
      }
      for (size_t i = 0; i < members; ++i) {
        if (ctx->needs_input_grad(1 + i)) of_weights[i] = of_results[i];
      }
      if (ctx->needs_input_grad(0)) {
        const auto sum = below.defined()
                             ? input_gradient(together, below, of_weights, options)
                             : input_gradient(of_results, operands, of_weights, options);
        if (sum.defined()) out[0] = at::_unsafe_view(sum, kept.x_sizes);
      }
    }
    std::ranges::move(
        gradients_of_weights(kept, saved[0], weights, of_weights, ctx->needs_input_grad(0)),
        out.begin() + 1);
    return out;
  }

 private:
  /// Computes them now, or leaves them to who waits for something.
  static variable_list gradients_of_weights(const Kept& kept, const at::Tensor& x,
                                            at::TensorList weights, const variable_list& gradients,
                                            bool has_input_gradient) {
    if (std::ranges::none_of(gradients, &at::Tensor::defined)) return variable_list(weights.size());
    const auto sinks = sinks_beside(weights, gradients);
    bool all_kept = true;
    for (size_t i = 0; i < sinks.size(); ++i) {
      all_kept &= sinks[i].defined() == gradients[i].defined();
    }
    const auto add = [gradients, weights = weights.vec(),
                      options = kept.options](const at::Tensor& x) {
      const auto sinks = sinks_beside(weights, gradients);
      at::AutoDispatchBelowADInplaceOrView guard;
      add_weight_gradients(x, gradients, weights, sinks, options);
    };
    if (all_kept && kept.shared && has_input_gradient) {
      kept.shared->add(x, add);
      return variable_list(weights.size());
    }
    if (all_kept && kept.deferred) {
      kept.deferred->add([x, add] { add(x); });
      return variable_list(weights.size());
    }
    at::AutoDispatchBelowADInplaceOrView guard;
    return add_weight_gradients(kept.shared ? kept.shared->restore(x) : x, gradients, weights,
                                sinks, kept.options);
  }
};

}  // namespace

std::vector<at::Tensor> linears(const at::Tensor& x, at::TensorList weights, at::TensorList biases,
                                const LinearsOptions& options) {
  TORCH_CHECK_VALUE(!weights.empty() && (biases.empty() || biases.size() == weights.size()),
                    "linear: expected a bias for each of ", weights.size(),
                    " weights or none, got ", biases.size());
  for (const auto& weight : weights) {
    const int64_t in = weight.dim() == 2 ? weight.size(options.in_out ? 0 : 1) : 0;
    TORCH_CHECK_VALUE(x.dim() >= 1 && weight.dim() == 2 && x.size(-1) == in,
                      "linear: expected x [.., ", in, "], got ", x.sizes());
  }
  if (x.numel() == 0 && !options.over_ranks) {
    variable_list results;
    for (size_t i = 0; i < weights.size(); ++i) {
      const auto bias = biases.empty() ? std::nullopt : std::optional(biases[i]);
      results.push_back(at::linear(x, out_in(weights[i], options.in_out), bias));
    }
    return results;
  }
  std::vector<at::Tensor> operands;
  if (is_autocast(weights[0])) {
    for (const auto& weight : weights) operands.push_back(autocast_weight(weight));
  }
  return autograd::apply<Linears>(autocast(x), weights, biases, operands, options);
}

}  // namespace tessera::kernels
