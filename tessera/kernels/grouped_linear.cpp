#include "tessera/kernels/grouped_linear.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "tessera/autograd/apply.h"
#include "tessera/autograd/deferred_gradients.h"
#include "tessera/autograd/gradient_sink.h"
#include "tessera/autograd/held.h"
#include "tessera/autograd/recompute.h"
#include "tessera/kernels/adjacent.h"
#include "tessera/kernels/autocast.h"
#include "tessera/kernels/cpu/matmul.h"

namespace tessera::kernels {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// visit(e, first row, rows) for each group, those without rows included.
void for_each_group(const at::Tensor& counts, const auto& visit) {
  const auto here = counts.cpu();
  const auto* of_group = here.const_data_ptr<int64_t>();
  for (int64_t e = 0, row = 0; e < here.numel(); row += of_group[e], ++e)
    visit(e, row, of_group[e]);
}

/// Does one launch multiply all groups?
bool multiplies_at_once(const at::Tensor& rows, at::TensorList weights) {
  constexpr int64_t kAligned = 8;  // elements of 16 bytes together
  return rows.is_cuda() && rows.scalar_type() == at::kBFloat16 && rows.size(0) > 0 &&
         weights[0].size(0) % kAligned == 0 && weights[0].size(1) % kAligned == 0;
}

/// The matrices as one tensor [E, O, I]: a view where they lie evenly in one buffer.
at::Tensor stacked(at::TensorList weights) {
  const auto& first = weights[0];
  const int64_t distance =
      weights.size() > 1 ? weights[1].storage_offset() - first.storage_offset() : first.numel();
  bool evenly = distance > 0;
  for (size_t e = 0; evenly && e < weights.size(); ++e) {
    evenly =
        weights[e].is_contiguous() && weights[e].is_alias_of(first) &&
        weights[e].storage_offset() == first.storage_offset() + static_cast<int64_t>(e) * distance;
  }
  if (!evenly) return at::stack(weights);
  return first.as_strided({static_cast<int64_t>(weights.size()), first.size(0), first.size(1)},
                          {distance, first.size(1), 1}, first.storage_offset());
}

at::Tensor ends_of(const at::Tensor& counts) { return counts.cumsum(0, at::kInt); }

/// Rows times W_e^T, or W_e if `plain`; added to `sum` if that is defined.
at::Tensor product(const at::Tensor& rows, at::TensorList weights, const at::Tensor& counts,
                   bool plain, const at::Tensor& sum = {}) {
  if (multiplies_at_once(rows, weights)) {
    const auto all = stacked(weights);
    auto result = at::_grouped_mm(rows, plain ? all : all.transpose(1, 2), ends_of(counts));
    return sum.defined() ? sum.add_(result) : result;
  }
  auto result = sum.defined()
                    ? sum
                    : at::empty({rows.size(0), weights[0].size(plain ? 1 : 0)}, rows.options());
  for_each_group(counts, [&](int64_t e, int64_t row, int64_t count) {
    if (count == 0) return;
    const auto& weight = weights[static_cast<size_t>(e)];
    multiply(result.narrow(0, row, count), rows.narrow(0, row, count), plain ? weight : weight.t(),
             /*accumulate=*/sum.defined());
  });
  return result;
}

/// int64 [rows]: the group of each. Nothing is read on the host.
at::Tensor groups_of_rows(const at::Tensor& counts, int64_t rows) {
  // An optional, as the overload with a plain integer repeats each count that often.
  return at::repeat_interleave(counts, std::optional<int64_t>(rows));
}

/// Adds each group's share of its bias to its rows. A GPU takes all at once, without reading the
/// counts.
void add_biases(const at::Tensor& result, at::TensorList biases, const at::Tensor& counts,
                double share) {
  const auto own = [&](const at::Tensor& bias) { return bias.mul(share).to(result.scalar_type()); };
  if (result.is_cuda()) {
    result.add_(own(at::stack(biases)).index_select(0, groups_of_rows(counts, result.size(0))));
    return;
  }
  for_each_group(counts, [&](int64_t e, int64_t row, int64_t count) {
    if (count > 0) result.narrow(0, row, count).add_(own(biases[static_cast<size_t>(e)]));
  });
}

/// The sum of each group's rows, in float32 [E, O].
at::Tensor sums_of_groups(const at::Tensor& grad, const at::Tensor& counts) {
  if (grad.is_cuda()) {  // a product, which has one order of additions
    const auto group_of = groups_of_rows(counts, grad.size(0));
    const auto is_of = at::arange(counts.numel(), counts.options()).unsqueeze(1).eq(group_of);
    return is_of.to(at::kFloat).matmul(grad.to(at::kFloat));
  }
  auto sums = at::zeros({counts.numel(), grad.size(1)}, grad.options().dtype(at::kFloat));
  for_each_group(counts, [&](int64_t e, int64_t row, int64_t count) {
    if (count == 0) return;
    auto sum = sums[e];
    at::sum_out(sum, grad.narrow(0, row, count), {0}, /*keepdim=*/false, at::kFloat);
  });
  return sums;
}

/// Adds each group's grad^T x to its sink; without one it is what is returned for the group.
variable_list weight_gradients(const at::Tensor& x, const at::Tensor& grad, at::TensorList weights,
                               at::TensorList sinks, const at::Tensor& counts) {
  variable_list result(weights.size());
  if (multiplies_at_once(x, weights)) {
    auto all = at::_grouped_mm(grad.t(), x, ends_of(counts));
    all.masked_fill_(counts.eq(0).view({-1, 1, 1}), 0);
    for (size_t e = 0; e < weights.size(); ++e) {
      result[e] =
          autograd::hand_over(sinks[e], all[static_cast<int64_t>(e)], weights[e].scalar_type());
    }
    return result;
  }
  for_each_group(counts, [&](int64_t group, int64_t row, int64_t count) {
    const auto e = static_cast<size_t>(group);
    const auto options = weights[e].options().requires_grad(false);
    if (count > 0) {
      result[e] =
          multiply_into(sinks[e], grad.narrow(0, row, count).t(), x.narrow(0, row, count), options);
    } else if (sinks[e].defined()) {
      autograd::fill_unwritten(sinks[e]);
    } else {
      result[e] = at::zeros(weights[e].sizes(), options);
    }
  });
  return result;
}

std::vector<at::Tensor> sinks_of(at::TensorList weights) {
  std::vector<at::Tensor> sinks;
  for (const auto& weight : weights) sinks.push_back(autograd::gradient_sink(weight));
  return sinks;
}

/// Tensors of each group of each member, one member after the other.
class Members {
 public:
  Members(at::TensorList tensors, size_t groups) : tensors_(tensors), groups_(groups) {}

  size_t size() const { return tensors_.size() / groups_; }
  at::TensorList operator[](size_t member) const {
    return tensors_.slice(member * groups_, groups_);
  }

  /// Those of a group, a member after the other.
  std::vector<at::Tensor> of_group(size_t group) const {
    std::vector<at::Tensor> parts;
    for (size_t m = 0; m < size(); ++m) parts.push_back(tensors_[m * groups_ + group]);
    return parts;
  }

  /// Each group's matrices as one; nothing if they do not all lie one below the other, and of one member.
  std::vector<at::Tensor> joined() const {
    std::vector<at::Tensor> result;
    for (size_t e = 0; e < groups_; ++e) {
      result.push_back(one_below_other(of_group(e)));
      if (!result.back().defined()) return {};
    }
    return result;
  }

 private:
  at::TensorList tensors_;
  size_t groups_;
};

variable_list results_of(const at::Tensor& x, const Members& weights, const at::Tensor& counts) {
  if (const auto joined = weights.joined(); !joined.empty()) {
    std::vector<int64_t> widths;
    for (size_t m = 0; m < weights.size(); ++m) widths.push_back(weights[m][0].size(0));
    return product(x, joined, counts, /*plain=*/false).split_with_sizes(widths, 1);
  }
  variable_list results;
  for (size_t m = 0; m < weights.size(); ++m) {
    results.push_back(product(x, weights[m], counts, /*plain=*/false));
  }
  return results;
}

at::Tensor input_gradient(at::TensorList grads, const Members& weights, const at::Tensor& counts) {
  if (const auto together = side_by_side(grads); together.defined()) {
    const auto joined = weights.joined();
    if (!joined.empty()) return product(together, joined, counts, /*plain=*/true);
  }
  at::Tensor sum;
  for (size_t m = 0; m < weights.size(); ++m) {
    sum = product(grads[m].contiguous(), weights[m], counts, /*plain=*/true, sum);
  }
  return sum;
}

/// In the order of `weights`.
variable_list gradients_of_members(const at::Tensor& x, at::TensorList grads,
                                   const Members& weights, const Members& sinks,
                                   const at::Tensor& counts) {
  if (const auto together = side_by_side(grads); together.defined()) {
    if (const auto joined = sinks.joined(); !joined.empty()) {
      for (size_t e = 0; e < joined.size(); ++e) {
        if (!autograd::adds_to(sinks.of_group(e))) autograd::set_unwritten(joined[e]);
      }
      weight_gradients(x, together, joined, joined, counts);
      return variable_list(weights.size() * joined.size());
    }
  }
  variable_list result;
  for (size_t m = 0; m < weights.size(); ++m) {
    std::ranges::move(weight_gradients(x, grads[m].contiguous(), weights[m], sinks[m], counts),
                      std::back_inserter(result));
  }
  return result;
}

struct GroupedLinears : torch::autograd::Function<GroupedLinears> {
  /// `operands`: the weights as the products take them, if those are other tensors (autocast).
  static variable_list forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& counts,
                               at::TensorList weights, at::TensorList biases, double bias_share,
                               const std::vector<at::Tensor>& operands) {
    at::AutoDispatchBelowADInplaceOrView guard;
    const bool trains = std::ranges::any_of(weights, &at::Tensor::requires_grad);
    variable_list saved{trains ? x : at::Tensor(), counts};
    for (const at::TensorList list : {weights, biases, at::TensorList(operands)}) {
      saved.insert(saved.end(), list.begin(), list.end());
    }
    ctx->save_for_backward(std::move(saved));
    ctx->saved_data["weights"] = static_cast<int64_t>(weights.size());
    ctx->saved_data["biases"] = static_cast<int64_t>(biases.size());
    ctx->saved_data["bias_share"] = bias_share;
    if (const auto& deferred = autograd::DeferScope::current())
      autograd::hold(ctx, "deferred", deferred);
    const auto groups = static_cast<size_t>(counts.numel());
    return autograd::compute_once(
        autograd::Operator::product, weights.size() / groups, [&]() -> variable_list {
          auto results = results_of(
              x, {operands.empty() ? weights : at::TensorList(operands), groups}, counts);
          const Members of_members(biases, groups);
          for (size_t m = 0; m < of_members.size(); ++m) {
            add_biases(results[m], of_members[m], counts, bias_share);
          }
          return results;
        });
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const auto &x = saved[0], &counts = saved[1];
    const auto groups = static_cast<size_t>(counts.numel());
    const auto num_weights = static_cast<size_t>(ctx->saved_data["weights"].toInt()),
               num_biases = static_cast<size_t>(ctx->saved_data["biases"].toInt());
    const std::vector<at::Tensor> weights(saved.begin() + 2, saved.begin() + 2 + num_weights);
    const auto biases = at::TensorList(saved).slice(2 + num_weights, num_biases);
    const auto cast = at::TensorList(saved).slice(2 + num_weights + num_biases);
    // Outside the guard: .grad() is autograd's.
    const bool trains = x.defined();
    const auto sinks = trains ? sinks_of(weights) : std::vector<at::Tensor>();
    const bool trains_biases = std::ranges::any_of(biases, &at::Tensor::requires_grad);
    const auto bias_sinks = trains_biases ? sinks_of(biases) : std::vector<at::Tensor>();
    at::AutoDispatchBelowADInplaceOrView guard;
    variable_list out(2 + num_weights + num_biases + 2);
    if (ctx->needs_input_grad(0)) {
      out[0] =
          input_gradient(grads, {cast.empty() ? at::TensorList(weights) : cast, groups}, counts);
    }
    for (size_t b = 0; trains_biases && b < num_biases; b += groups) {
      const auto sums =
          sums_of_groups(grads[b / groups], counts).mul_(ctx->saved_data["bias_share"].toDouble());
      for (size_t e = 0; e < groups; ++e) {
        out[2 + num_weights + b + e] = autograd::hand_over(
            bias_sinks[b + e], sums[static_cast<int64_t>(e)], biases[b + e].scalar_type());
      }
    }
    if (!trains) return out;
    const auto* deferred = autograd::held<autograd::DeferredGradientsPtr>(ctx, "deferred");
    if (deferred != nullptr && std::ranges::all_of(sinks, &at::Tensor::defined)) {
      (*deferred)->add([x, grads, weights, counts, groups] {
        const auto sinks = sinks_of(weights);
        at::AutoDispatchBelowADInplaceOrView guard;
        gradients_of_members(x, grads, {weights, groups}, {sinks, groups}, counts);
      });
      return out;
    }
    std::ranges::move(gradients_of_members(x, grads, {weights, groups}, {sinks, groups}, counts),
                      out.begin() + 2);
    return out;
  }
};

void check(const at::Tensor& x, at::TensorList weights, const at::Tensor& counts,
           at::TensorList biases) {
  TORCH_CHECK_VALUE(!weights.empty(), "grouped_linear: expected a weight, got none");
  TORCH_CHECK_VALUE(weights[0].dim() == 2 && x.dim() == 2 && x.size(1) == weights[0].size(1),
                    "grouped_linear: expected x [R, I] and weights [O, I], got ", x.sizes(),
                    " and ", weights[0].sizes());
  TORCH_CHECK_VALUE(
      counts.scalar_type() == at::kLong && counts.numel() == static_cast<int64_t>(weights.size()),
      "grouped_linear: expected int64 counts of ", weights.size(), " groups, got ", counts.numel());
  TORCH_CHECK_VALUE(biases.empty() || (biases.size() == weights.size() && biases[0].dim() == 1 &&
                                       biases[0].size(0) == weights[0].size(0)),
                    "grouped_linear: expected a bias [", weights[0].size(0), "] for each of ",
                    weights.size(), " groups, or none, got ", biases.size());
}

}  // namespace

std::vector<at::Tensor> grouped_linears(const at::Tensor& x,
                                        const std::vector<GroupedMatrices>& members,
                                        const at::Tensor& counts, double bias_share) {
  std::vector<at::Tensor> weights, biases, operands;
  for (const auto& member : members) {
    check(x, member.weights, counts, member.biases);
    weights.insert(weights.end(), member.weights.begin(), member.weights.end());
    biases.insert(biases.end(), member.biases.begin(), member.biases.end());
  }
  TORCH_CHECK_VALUE(biases.empty() || biases.size() == weights.size(),
                    "grouped_linears: expected biases of all members or of none, got ",
                    biases.size(), " of ", weights.size());
  if (is_autocast(weights[0])) {
    for (const auto& weight : weights) operands.push_back(autocast_weight(weight));
  }
  return autograd::apply<GroupedLinears>(autocast(x).contiguous(), counts, at::TensorList(weights),
                                         at::TensorList(biases), bias_share, operands);
}

at::Tensor grouped_linear(const at::Tensor& x, at::TensorList weights, const at::Tensor& counts,
                          at::TensorList biases, double bias_share) {
  return grouped_linears(x, {{.weights = weights.vec(), .biases = biases.vec()}}, counts,
                         bias_share)[0];
}

at::Tensor grouped_linear_reference(const at::Tensor& x, at::TensorList weights,
                                    const at::Tensor& counts, at::TensorList biases,
                                    double bias_share) {
  check(x, weights, counts, biases);
  std::vector<at::Tensor> results;
  for_each_group(counts, [&](int64_t group, int64_t row, int64_t count) {
    const auto e = static_cast<size_t>(group);
    const auto bias = biases.empty() ? at::Tensor() : biases[e] * bias_share;
    results.push_back(at::linear(x.narrow(0, row, count), weights[e], bias));
  });
  return at::cat(results);
}

}  // namespace tessera::kernels
