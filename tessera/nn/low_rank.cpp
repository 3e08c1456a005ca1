#include "tessera/nn/low_rank.h"

#include <algorithm>

#include "tessera/kernels/autocast.h"
#include "tessera/nn/dropout.h"

namespace tessera::nn {
namespace {

class LowRankWeight : public LinearWeight {
 public:
  LowRankWeight(LinearImpl& layer, const LowRankOptions& options)
      : base_(layer.kept()), scale_(options.scale) {
    const auto frozen = base_->parameters(layer);
    const auto on_device = torch::dtype(torch::kFloat32).device(frozen.front().values.device());
    for (const auto& parameter : frozen) parameter.values.requires_grad_(false);
    const auto add = [&](const char* name, at::IntArrayRef sizes) {
      return layer.register_parameter(name, torch::empty(sizes, on_device));
    };
    a_ = add("lora_A", {options.rank, layer.in_features});
    b_ = add("lora_B", {layer.out_features, options.rank});
    if (options.magnitude) magnitude_ = add("lora_magnitude_vector", {layer.out_features});
    if (options.dropout > 0) {
      dropout_ = layer.register_module(
          "lora_dropout", Dropout(options.dropout_name + ".lora_dropout", options.dropout));
    }
  }

  torch::Tensor multiply(const LinearImpl& layer, const torch::Tensor& x) const override {
    torch::Tensor dropped;
    if (auto dropout = dropout_; dropout && dropout->is_training()) dropped = dropout(x);
    const auto base = base_->frozen(layer);
    const kernels::LowRank adapter{.a = a_, .b = b_, .scale = scale_};
    if (!magnitude_.defined()) {
      return kernels::low_rank_linear(x, base, adapter, layer.own_bias(), layer.over_ranks,
                                      dropped);
    }
    const auto& read = dropped.defined() ? dropped : x;
    const auto y = kernels::low_rank_linear(read, base, adapter, {}, layer.over_ranks);
    const auto scaled = y * row_factors(layer, base, adapter, y.scalar_type());
    // What is dropped is dropped for the adapter alone.
    if (dropped.defined()) return scaled + base_->multiply(layer, x - dropped);
    return layer.bias.defined() ? scaled + layer.own_bias().to(y.scalar_type()) : scaled;
  }

  std::vector<LinearParameter> parameters(const LinearImpl& layer) const override {
    auto all = base_->parameters(layer);
    all.push_back({.name = "lora_A", .values = a_, .in_dim = 1});
    all.push_back({.name = "lora_B", .values = b_, .out_dim = 0});
    if (magnitude_.defined()) {
      all.push_back(
          {.name = "lora_magnitude_vector", .values = magnitude_, .out_dim = 0, .after_sum = true});
    }
    return all;
  }

  kernels::FrozenMatrix frozen(const LinearImpl& /*layer*/) const override {
    TORCH_CHECK_VALUE(false, "adapter: expected a layer without one; merge that one first");
  }

 private:
  /// m / |W + scale B A|.
  torch::Tensor row_factors(const LinearImpl& layer, const kernels::FrozenMatrix& base,
                            const kernels::LowRank& adapter, torch::Dtype dtype) const {
    const auto norms = kernels::adapted_row_norms(base, adapter, dtype, layer.add_up);
    return (magnitude_ / norms).to(dtype);
  }

  LinearWeightPtr base_;
  double scale_;
  torch::Tensor a_, b_, magnitude_;
  Dropout dropout_{nullptr};
};

void check_rank(int64_t rank, int64_t most) {
  TORCH_CHECK_VALUE(rank > 0 && rank <= most, "adapter: expected a rank from 1 to ", most, ", got ",
                    rank);
}

}  // namespace

void add_low_rank(LinearImpl& layer, const LowRankOptions& options) {
  check_rank(options.rank, std::max(layer.in_features, layer.out_features));
  layer.keep(std::make_shared<LowRankWeight>(layer, options));
}

void add_low_rank(EmbeddingImpl& layer, const LowRankOptions& options) {
  check_rank(options.rank, std::max(layer.weight.size(0), layer.weight.size(1)));
  TORCH_CHECK_VALUE(!options.magnitude,
                    "adapter: magnitudes of an embedding are not offered; leave it out");
  layer.weight.requires_grad_(false);
  const auto on_device = torch::dtype(torch::kFloat32).device(layer.weight.device());
  const auto a = layer.register_parameter(
      "lora_embedding_A", torch::empty({options.rank, layer.weight.size(0)}, on_device));
  const auto b = layer.register_parameter(
      "lora_embedding_B", torch::empty({layer.weight.size(1), options.rank}, on_device));
  layer.beside = [a, b, scale = options.scale](const EmbeddingImpl& module,
                                               const torch::Tensor& ids) {
    auto columns = ids.reshape(-1);
    torch::Tensor here;
    if (module.first_row) {
      columns = columns - *module.first_row;
      here = columns.ge(0).logical_and_(columns < a.size(1));
      columns = columns.clamp(0, a.size(1) - 1);
    }
    auto inner = a.index_select(1, columns);
    if (here.defined()) inner = inner * here;
    auto sizes = ids.sizes().vec();
    sizes.push_back(b.size(0));
    return (inner.t().matmul(b.t()) * scale).view(sizes);
  };
}

}  // namespace tessera::nn
