#include "tessera/nn/layers.h"

#include <torch/csrc/autograd/custom_function.h>

#include "tessera/autograd/gradient_sink.h"
#include "tessera/kernels/layer_norm.h"
#include "tessera/kernels/linear.h"
#include "tessera/kernels/linear_cross_entropy.h"
#include "tessera/kernels/rms_norm.h"

namespace tessera::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

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
    const auto here =
        rows.ge(first_row).logical_and_(rows < first_row + weight.size(0)).nonzero().squeeze(1);
    const auto local = rows.index_select(0, here).sub_(first_row);
    context->save_for_backward({weight, local, here});
    auto result = torch::zeros({rows.numel(), weight.size(1)}, weight.options());
    return result.index_copy_(0, here, weight.index_select(0, local)).reshape(sizes);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const auto& weight = saved[0];
    const auto& ids = saved[1];
    auto rows = gradients[0].reshape({-1, weight.size(1)});
    if (saved.size() == 3) rows = rows.index_select(0, saved[2]);
    if (auto sink = autograd::gradient_sink(weight); sink.defined()) {
      sink.index_add_(0, ids, rows.to(sink.scalar_type()));
      return variable_list(3);
    }
    return {torch::zeros_like(weight).index_add_(0, ids, rows), torch::Tensor(), torch::Tensor()};
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

torch::Tensor RMSNormImpl::forward(const torch::Tensor& x) {
  const auto normed = kernels::rms_norm(x, offset == 0 ? weight : weight + offset, eps);
  if (!divided) return normed;
  // Normed by this rank's features, and then by what the root mean square of all differs.
  const auto wide = x.to(torch::kFloat32);
  const auto squares = wide.square().sum(-1, /*keepdim=*/true);
  const auto own = squares / x.size(-1) + eps;
  const auto all = divided->sum(squares) / divided->features + eps;
  return normed * (own / all).sqrt().to(normed.scalar_type());
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
  if (torch::GradMode::is_enabled()) options.weight_gradient = weight.grad();
  return kernels::linear_cross_entropy(hidden.reshape({-1, weight.size(1)}), weight,
                                       targets.reshape(-1), options);
}

}  // namespace tessera::nn
