#include "tessera/nn/layers.h"

#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "tessera/autograd/gradient_sink.h"
#include "tessera/kernels/layer_norm.h"
#include "tessera/kernels/linear.h"
#include "tessera/kernels/linear_cross_entropy.h"
#include "tessera/kernels/rms_norm.h"

namespace tessera::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// table[ids[i]] += rows[i], in one order: on a GPU ids are sorted first, where index_add_ would let threads race.
torch::Tensor add_rows(torch::Tensor table, const torch::Tensor& ids, const torch::Tensor& rows) {
  if (table.size(0) == 0) return table;
  if (!table.is_cuda()) return table.index_add_(0, ids, rows);
  return table.index_put_({ids}, rows, /*accumulate=*/true);
}

struct EmbeddingFunction : torch::autograd::Function<EmbeddingFunction> {
  /// `first_row`: index of the first row that `weight` has, or -1 if it is whole.
  static torch::Tensor forward(AutogradContext* context, const torch::Tensor& weight,
                               const torch::Tensor& ids, int64_t first_row) {
    auto sizes = ids.sizes().vec();
    sizes.push_back(weight.size(1));
    const auto rows = ids.reshape(-1);
    if (first_row < 0) {
      context->save_for_backward({weight, rows});
      return weight.index_select(0, rows).reshape(sizes);
    }
    // Which rows are elsewhere is not asked for on the host: they are zeros, whatever row stands for them.
    const auto elsewhere =
        rows.lt(first_row).logical_or_(rows >= first_row + weight.size(0)).unsqueeze_(1);
    const auto local = (rows - first_row).clamp_(0, std::max<int64_t>(0, weight.size(0) - 1));
    context->save_for_backward({weight, local, elsewhere});
    if (weight.size(0) == 0) return torch::zeros(sizes, weight.options());
    return weight.index_select(0, local).masked_fill_(elsewhere, 0).reshape(sizes);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const auto& weight = saved[0];
    const auto& ids = saved[1];
    auto rows = gradients[0].reshape({-1, weight.size(1)});
    if (saved.size() == 3) rows = rows.masked_fill(saved[2], 0);
    if (auto sink = autograd::gradient_sink(weight); sink.defined()) {
      autograd::fill_unwritten(sink);
      add_rows(sink, ids, rows.to(sink.scalar_type()));
      return variable_list(3);
    }
    return {add_rows(torch::zeros_like(weight), ids, rows), torch::Tensor(), torch::Tensor()};
  }
};

}  // namespace

EmbeddingImpl::EmbeddingImpl(int64_t num_embeddings, int64_t dim,
                             const torch::TensorOptions& options) {
  weight = register_parameter("weight", torch::empty({num_embeddings, dim}, options));
}

torch::Tensor EmbeddingImpl::forward(const torch::Tensor& ids) {
  const auto rows = EmbeddingFunction::apply(weight, ids, first_row.value_or(-1));
  return beside ? rows + beside(*this, ids).to(rows.scalar_type()) : rows;
}

RMSNormImpl::RMSNormImpl(int64_t dim, double eps, const torch::TensorOptions& options,
                         double offset)
    : eps(eps), offset(offset) {
  weight = register_parameter("weight", torch::empty({dim}, options));
}

std::tuple<torch::Tensor, torch::Tensor> RMSNormImpl::forward(const torch::Tensor& x,
                                                              const torch::Tensor& residual) {
  const auto scale = offset == 0 ? weight : weight + offset;
  auto [sum, normed] = kernels::add_rms_norm(x, residual, scale, eps);
  if (divided) {
    // Normed by this rank's features, and then by what the root mean square of all differs.
    const auto wide = sum.to(torch::kFloat32);
    const auto squares = wide.square().sum(-1, /*keepdim=*/true);
    const auto own = squares / sum.size(-1) + eps;
    const auto all = divided->sum(squares) / divided->features + eps;
    normed = normed * (own / all).sqrt().to(normed.scalar_type());
  }
  return {sum, normed};
}

torch::Tensor RMSNormImpl::forward(const torch::Tensor& x) {
  return std::get<1>(forward(x, torch::Tensor()));
}

LayerNormImpl::LayerNormImpl(int64_t dim, double eps, const torch::TensorOptions& options)
    : eps(eps) {
  weight = register_parameter("weight", torch::empty({dim}, options));
  bias = register_parameter("bias", torch::empty({dim}, options));
}

torch::Tensor LayerNormImpl::forward(const torch::Tensor& x) {
  return kernels::layer_norm(x, weight, bias, eps);
}

LanguageModelHeadImpl::LanguageModelHeadImpl(int64_t dim, int64_t vocab_size,
                                             const torch::TensorOptions& options) {
  weight = register_parameter("weight", torch::empty({vocab_size, dim}, options));
}

LanguageModelHeadImpl::LanguageModelHeadImpl(torch::Tensor tied_weight)
    : weight(std::move(tied_weight)) {}

std::vector<torch::Tensor> LanguageModelHeadImpl::borrowed_parameters() const {
  return parameters_.is_empty() ? std::vector{weight} : std::vector<torch::Tensor>();
}

torch::Tensor LanguageModelHeadImpl::forward(const torch::Tensor& hidden,
                                             const torch::Tensor& targets,
                                             const kernels::TokenLoss& loss) {
  if (!targets.defined()) {
    const auto logits = kernels::linear(hidden, weight);
    return softcap == 0 ? logits : logits.div(softcap).tanh() * softcap;
  }
  kernels::LinearCrossEntropyOptions options{
      .loss = loss, .softcap = softcap, .vocabulary = vocabulary};
  if (torch::GradMode::is_enabled() && adds_in_forward)
    options.weight_gradient = autograd::gradient_sink(weight);
  return kernels::linear_cross_entropy(hidden.reshape({-1, weight.size(1)}), weight,
                                       targets.reshape(-1), options);
}

}  // namespace tessera::nn
