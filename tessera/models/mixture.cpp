#include "tessera/models/mixture.h"

#include <ATen/ops/sigmoid.h>
#include <fmt/format.h>

#include <string>

namespace tessera::models {
namespace {

ModelShape shape_of_shared(ModelShape shape) {
  shape.ffn_dim = shape.experts.shared_ffn_dim;
  return shape;
}

class MixtureImpl : public FeedForwardImpl {
 public:
  MixtureImpl(const ModelShape& shape, const MixtureNames& names, const nn::RouterOptions& router,
              const nn::GatedUnit& gated, const torch::TensorOptions& options)
      : router_(shape.dim, router, options),
        experts_(
            nn::ExpertsOptions{.num_experts = shape.experts.num,
                               .dim = shape.dim,
                               .ffn_dim = shape.ffn_dim,
                               .names = {.gate = names.gate, .up = names.up, .down = names.down},
                               .with_bias = shape.mlp_bias,
                               .gated = gated},
            options) {
    register_module(names.router, router_);
    register_module("experts", experts_);
    if (shape.experts.shared_ffn_dim == 0) return;
    shared_ = register_module(names.shared, GatedMlp(shape_of_shared(shape), options));
    if (!names.coefficient.empty()) {
      coefficient_ =
          register_module(names.coefficient, nn::Linear(shape.dim, 2, /*with_bias=*/true, options));
    }
    if (!names.shared_gate.empty()) {
      shared_gate_ = register_module(names.shared_gate,
                                     nn::Linear(shape.dim, 1, /*with_bias=*/false, options));
    }
  }

  torch::Tensor forward(const torch::Tensor& x) override {
    if (!shared_) return experts_(x, router_(x));
    const auto [result, shared] = experts_(x, router_(x), [this](const torch::Tensor& same) {
      const auto shared = shared_(same);
      return shared_gate_ ? shared_gate_(same).sigmoid() * shared : shared;
    });
    if (coefficient_) {
      const auto shares = coefficient_(x).softmax(-1, torch::kFloat32).to(result.scalar_type());
      return shares.narrow(-1, 0, 1) * result + shares.narrow(-1, 1, 1) * shared;
    }
    return result + shared;
  }

 private:
  nn::Router router_;
  nn::Experts experts_;
  GatedMlp shared_{nullptr};
  nn::Linear shared_gate_{nullptr}, coefficient_{nullptr};
};

}  // namespace

nn::RouterOptions router_options(const ModelShape& shape) {
  return {.num_experts = shape.experts.num,
          .top_k = shape.experts.top_k,
          .normalise = shape.experts.normalise,
          .num_groups = shape.experts.groups,
          .top_groups = shape.experts.top_groups,
          .with_bias = shape.experts.router_bias,
          .selection_bias = shape.experts.selection_bias};
}

std::shared_ptr<FeedForwardImpl> make_mixture(const ModelShape& shape, const MixtureNames& names,
                                              const nn::RouterOptions& router,
                                              const torch::TensorOptions& options,
                                              const nn::GatedUnit& gated) {
  return std::make_shared<MixtureImpl>(shape, names, router, gated, options);
}

nn::TensorPlan mixture_plan(const ModelShape& shape, const MixtureNames& names) {
  using enum nn::TensorStyle;
  const auto mixture = "model.layers.*." + names.mixture;
  nn::TensorPlan plan{{.pattern = mixture, .style = region, .enters = true, .leaves = true},
                      {.pattern = mixture + "." + names.router, .style = per_head}};
  const auto add_gated = [&](const std::string& module, const MixtureNames& matrices,
                             bool of_expert = false) {
    for (const auto& inside : {matrices.gate, matrices.up}) {
      plan.push_back({.pattern = fmt::format("{}.{}", module, inside),
                      .style = column_wise,
                      .of_expert = of_expert});
    }
    plan.push_back({.pattern = module + "." + matrices.down,
                    .style = row_wise,
                    .summand = true,
                    .of_expert = of_expert});
  };
  add_gated(mixture + ".experts.*", names, /*of_expert=*/true);
  if (shape.experts.num_dense_layers > 0) add_gated(mixture, MixtureNames{});
  if (shape.experts.shared_ffn_dim == 0) return plan;
  for (const auto& whole : {names.shared_gate, names.coefficient}) {
    if (!whole.empty())
      plan.push_back({.pattern = fmt::format("{}.{}", mixture, whole), .style = per_head});
  }
  add_gated(mixture + "." + names.shared, MixtureNames{});
  return plan;
}

}  // namespace tessera::models
