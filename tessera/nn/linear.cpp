#include "tessera/nn/linear.h"

#include "tessera/kernels/autocast.h"
#include "tessera/kernels/cpu/matmul.h"
#include "tessera/nn/dropout.h"

namespace tessera::nn {
namespace {

class DenseWeight : public LinearWeight {
 public:
  explicit DenseWeight(WeightLayout layout) : layout_(layout) {}

  torch::Tensor multiply(const LinearImpl& layer, const torch::Tensor& x) const override {
    const auto& weight = layer.weight;
    const auto products = products_of(layer);
    if (layout_ == WeightLayout::in_out) {
      return kernels::linear_in_out(x, weight, layer.own_bias(), layer.over_ranks, products);
    }
    TORCH_CHECK_VALUE(x.scalar_type() == weight.scalar_type() || kernels::is_autocast(weight),
                      "Linear: expected an input of ", weight.scalar_type(), " as its weight, got ",
                      x.scalar_type(),
                      "; cast it, or let MixedPrecisionPolicy::cast_constant_inputs do that");
    return kernels::linear(x, weight, layer.own_bias(), layer.over_ranks, products);
  }

  std::vector<LinearParameter> parameters(const LinearImpl& layer) const override {
    const bool out_first = layout_ == WeightLayout::out_in;
    return {{"weight", layer.weight, out_first ? 0 : 1, out_first ? 1 : 0}};
  }

  bool is_dense() const override { return layout_ == WeightLayout::out_in; }

  kernels::FrozenMatrix frozen(const LinearImpl& layer) const override {
    // The cast of a forward under autocast serves its backward, which is outside of it.
    const auto used = kernels::autocast_weight(layer.weight);
    const auto out_in = [used, out_first = layout_ == WeightLayout::out_in](at::ScalarType type) {
      const auto weight = used.to(type);
      return out_first ? weight : weight.t();
    };
    const auto products = products_of(layer);
    return {.forward =
                [=](const auto& rows, const auto& more) {
                  const auto weight = out_in(rows.scalar_type());
                  if (!products) return kernels::sum_of_products({rows, weight.t()}, more);
                  return kernels::added(products->forward(rows, weight), more);
                },
            .backward =
                [=](const auto& rows, const auto& more) {
                  const auto weight = out_in(rows.scalar_type());
                  if (!products) return kernels::sum_of_products({rows, weight}, more);
                  return kernels::added(products->input_gradient(rows, weight, /*trains=*/false),
                                        more);
                },
            .squared_row_norms =
                [=] {
                  return at::linalg_vector_norm(out_in(used.scalar_type()), 2, 1, false,
                                                torch::kFloat32)
                      .square_();
                }};
  }

 private:
  static kernels::LinearProductsPtr products_of(const LinearImpl& layer) {
    return trains(layer) ? layer.products : nullptr;
  }

  WeightLayout layout_;
};

}  // namespace

LinearImpl::LinearImpl(int64_t in_features, int64_t out_features, bool with_bias,
                       const torch::TensorOptions& options, WeightLayout layout)
    : in_features(in_features), out_features(out_features), layout_(layout) {
  const auto sizes = layout == WeightLayout::out_in ? std::vector{out_features, in_features}
                                                    : std::vector{in_features, out_features};
  weight = register_parameter("weight", torch::empty(sizes, options));
  if (with_bias) bias = register_parameter("bias", torch::empty({out_features}, options));
  kept_ = std::make_shared<DenseWeight>(layout);
}

torch::Tensor LinearImpl::own_bias() const {
  return bias.defined() && bias_share != 1 ? bias * bias_share : bias;
}

torch::Tensor LinearImpl::forward(const torch::Tensor& x) { return kept_->multiply(*this, x); }

std::vector<LinearParameter> LinearImpl::linear_parameters() const {
  auto parameters = kept_->parameters(*this);
  if (bias.defined())
    parameters.push_back({.name = "bias", .values = bias, .out_dim = 0, .after_sum = true});
  return parameters;
}

void LinearImpl::replace_weight(const std::vector<std::pair<std::string, torch::Tensor>>& parts) {
  parameters_.erase("weight");
  for (const auto& [name, values] : parts) register_parameter(name, values, false);
  weight = parts.front().second;
}

Conv1DImpl::Conv1DImpl(int64_t in_features, int64_t out_features,
                       const torch::TensorOptions& options)
    : LinearImpl(in_features, out_features, true, options, WeightLayout::in_out) {}

}  // namespace tessera::nn
