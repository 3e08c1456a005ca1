#include <ATen/ops/sigmoid.h>

#include "tessera/models/decoder.h"
#include "tessera/models/moe/shape.h"
#include "tessera/nn/experts.h"

namespace tessera::models {
namespace moe {
namespace {

constexpr const char *kSharedExpert = "shared_expert", *kSharedGate = "shared_expert_gate";

ModelShape shape_of_shared(ModelShape shape) {
  shape.ffn_dim = shape.experts.shared_ffn_dim;
  return shape;
}

/// A router and its experts, and Qwen2's expert that every token takes, as far as a gate of one number
/// opens to it.
class MixtureImpl : public FeedForwardImpl {
 public:
  MixtureImpl(const ModelShape& shape, const torch::TensorOptions& options)
      : gate_(shape.dim,
              nn::RouterOptions{.num_experts = shape.experts.num,
                                .top_k = shape.experts.top_k,
                                .normalise = shape.experts.normalise},
              options),
        experts_(nn::ExpertsOptions{.num_experts = shape.experts.num,
                                    .dim = shape.dim,
                                    .ffn_dim = shape.ffn_dim,
                                    .names = {.gate = names_of(shape).gate,
                                              .up = names_of(shape).up,
                                              .down = names_of(shape).down}},
                 options) {
    register_module("gate", gate_);
    register_module("experts", experts_);
    if (shape.experts.shared_ffn_dim == 0) return;
    shared_ = register_module(kSharedExpert, GatedMlp(shape_of_shared(shape), options));
    shared_gate_ =
        register_module(kSharedGate, nn::Linear(shape.dim, 1, /*with_bias=*/false, options));
  }

  torch::Tensor forward(const torch::Tensor& x) override {
    auto result = experts_(x, gate_(x));
    if (shared_) result = result + shared_gate_(x).sigmoid() * shared_(x);
    return result;
  }

 private:
  nn::Router gate_;
  nn::Experts experts_;
  GatedMlp shared_{nullptr};
  nn::Linear shared_gate_{nullptr};
};

/// Each expert is divided as a feed-forward; what ranks make of a token is summed once, after its
/// experts' results were weighted. A router's gradient comes of the part that each rank has of them.
nn::TensorPlan plan_of(const ModelShape& shape) {
  using enum nn::TensorStyle;
  const auto& names = names_of(shape);
  const auto mixture = "model.layers.*." + names.mixture, expert = mixture + ".experts.*.";
  nn::TensorPlan plan{{.pattern = mixture, .style = region, .enters = true, .leaves = true},
                      {.pattern = mixture + ".gate", .style = per_head},
                      {.pattern = expert + names.gate, .style = column_wise},
                      {.pattern = expert + names.up, .style = column_wise},
                      {.pattern = expert + names.down, .style = row_wise, .summand = true}};
  if (shape.experts.shared_ffn_dim == 0) return plan;
  const auto shared = mixture + "." + kSharedExpert + ".";
  plan.insert(plan.end(), {{.pattern = mixture + "." + kSharedGate, .style = per_head},
                           {.pattern = shared + "gate_proj", .style = column_wise},
                           {.pattern = shared + "up_proj", .style = column_wise},
                           {.pattern = shared + "down_proj", .style = row_wise, .summand = true}});
  return plan;
}

QkNorms norms_of(Kind kind) {
  switch (kind) {
    case Kind::mixtral:
    case Kind::qwen2:
      return QkNorms::none;
    case Kind::olmoe:
      return QkNorms::all_heads;
    case Kind::qwen3:
      return QkNorms::each_head;
  }
  TORCH_INTERNAL_ASSERT(false);
}

}  // namespace
}  // namespace moe

std::shared_ptr<LanguageModel> make_moe(const ModelShape& shape,
                                        const torch::TensorOptions& options) {
  const auto norms = moe::norms_of(moe::kind_of(shape));
  DecoderParts parts{.tables = {{shape.head_dim, rotary_options(shape)}},
                     .feed_forward = moe::plan_of(shape),
                     .norms = norms};
  parts.make_block = [&](int64_t layer) {
    return make_pre_norm_block(
        shape, {.attention = {.window = window_of(shape, layer)}, .norms = norms}, options,
        {.name = moe::names_of(shape).mixture,
         .module = std::make_shared<moe::MixtureImpl>(shape, options)});
  };
  return std::make_shared<Decoder>(shape, std::move(parts), options);
}

}  // namespace tessera::models
