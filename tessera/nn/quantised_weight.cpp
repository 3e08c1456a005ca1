#include "tessera/nn/quantised_weight.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "tessera/kernels/cpu/matmul.h"
#include "tessera/kernels/quantised_linear.h"

namespace tessera::nn {
namespace {

class QuantisedWeight : public LinearWeight {
 public:
  explicit QuantisedWeight(const QuantisedShape& shape)
      : shape_(shape), parts_(quantised_parts(shape)) {}

  torch::Tensor multiply(const LinearImpl& layer, const torch::Tensor& x) const override {
    return kernels::quantised_linear(x, of(layer), layer.own_bias(), layer.over_ranks);
  }

  kernels::FrozenMatrix frozen(const LinearImpl& layer) const override {
    const auto weight = of(layer);
    const auto product = [weight](bool transposed) {
      return [=](const torch::Tensor& rows, const kernels::Factors& more) {
        return kernels::added(kernels::quantised_product(rows, weight, transposed), more);
      };
    };
    return {.forward = product(/*transposed=*/false),
            .backward = product(/*transposed=*/true),
            .squared_row_norms = [weight] { return kernels::squared_row_norms(weight); }};
  }

  std::vector<LinearParameter> parameters(const LinearImpl& layer) const override {
    std::vector<LinearParameter> parameters;
    const auto registered = layer.named_parameters(/*recurse=*/false);
    for (const auto& part : parts_) {
      LinearParameter parameter{.name = part.name, .values = registered[part.name]};
      if (part.divides_out) parameter.out_dim = 0;
      if (part.in_features > 0) {
        parameter.in_dim = 1;
        parameter.in_features = part.in_features;
      }
      if (&part == &parts_[1]) parameter.kept = absmax_stripe_;
      if (!parts_.front().divides_out) {
        parameter.undividable = fmt::format(
            "its {} input features are no multiple of {}, so that blocks of its {} weight run over "
            "the ends of rows",
            shape_.in, shape_.block, text_of(shape_.format));
      }
      parameters.push_back(std::move(parameter));
    }
    return parameters;
  }

 private:
  /// What this rank has of the weight.
  kernels::Quantised of(const LinearImpl& layer) const {
    const auto registered = layer.named_parameters(/*recurse=*/false);
    kernels::Quantised weight{.shape = shape_,
                              .codes = layer.weight,
                              .absmax = registered[parts_[1].name],
                              .absmax_stripe = *absmax_stripe_};
    if (parts_.size() > 2) {
      weight.nested_absmax = registered[parts_[2].name];
      weight.nested_offset = registered[parts_[3].name];
    }
    if (parts_.front().divides_out) {
      weight.shape.out = weight.codes.size(0);
      weight.shape.in = weight.codes.size(1) * parts_.front().in_features;
    }
    return weight;
  }

  QuantisedShape shape_;
  std::vector<QuantisedPart> parts_;
  std::shared_ptr<Stripe> absmax_stripe_ = std::make_shared<Stripe>();
};

}  // namespace

void quantise_weight(LinearImpl& layer, const QuantiseOptions& options) {
  const torch::NoGradGuard no_grad;
  const QuantisedShape shape{.format = options.format,
                             .out = layer.out_features,
                             .in = layer.in_features,
                             .block = options.block};
  const auto parts = quantised_parts(shape);
  std::vector<std::pair<std::string, torch::Tensor>> values;
  if (layer.weight.is_meta()) {
    for (const auto& part : parts) {
      values.emplace_back(
          part.name, torch::empty(part.shape,
                                  layer.weight.options().dtype(torch::kByte).requires_grad(false)));
    }
  } else {
    const auto matrix = layer.weight.detach();
    const bool in_out = layer.weight_layout() == WeightLayout::in_out;
    const auto weight =
        kernels::quantise((in_out ? matrix.t() : matrix).cpu(), shape.format, shape.block);
    const torch::Tensor made[] = {weight.codes, weight.absmax, weight.nested_absmax,
                                  weight.nested_offset};
    for (size_t i = 0; i < parts.size(); ++i) {
      values.emplace_back(parts[i].name, made[i].to(layer.weight.device()));
    }
  }
  layer.replace_weight(values);
  layer.keep(std::make_shared<QuantisedWeight>(shape));
}

std::vector<QuantisedLayer> quantise_linear_layers(torch::nn::Module& model,
                                                   const std::vector<std::string>& blocks,
                                                   const QuantiseOptions& options) {
  std::vector<QuantisedLayer> layers;
  for (const auto& item : model.named_modules()) {
    const auto& path = item.key();
    const bool inside = std::ranges::any_of(
        blocks, [&](const auto& block) { return path.starts_with(block + "."); });
    auto* layer = inside ? item.value()->as<LinearImpl>() : nullptr;
    if (layer == nullptr) continue;
    layers.push_back({.path = path,
                      .shape = {.format = options.format,
                                .out = layer->out_features,
                                .in = layer->in_features,
                                .block = options.block},
                      .layout = layer->weight_layout()});
    quantise_weight(*layer, options);
  }
  return layers;
}

}  // namespace tessera::nn
