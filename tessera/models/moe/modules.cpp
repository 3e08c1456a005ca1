#include "tessera/models/decoder.h"
#include "tessera/models/moe/shape.h"
#include "tessera/nn/experts.h"

namespace tessera::models {
namespace moe {
namespace {

/// A router and its experts.
class MixtureImpl : public nn::Hookable {
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
  }

  torch::Tensor forward(const torch::Tensor& x) { return experts_(x, gate_(x)); }

 private:
  nn::Router gate_;
  nn::Experts experts_;
};
using Mixture = nn::Hooked<MixtureImpl>;

/// A block as Llama's, with a mixture in the place of the feed-forward.
class Block : public DecoderBlockImpl {
 public:
  Block(const ModelShape& shape, const SelfAttentionOptions& attention,
        const torch::TensorOptions& options)
      : self_attn_(shape, attention, options),
        mixture_(shape, options),
        input_layernorm_(shape.dim, shape.norm_eps, options),
        post_attention_layernorm_(shape.dim, shape.norm_eps, options) {
    register_module("self_attn", self_attn_);
    register_module(names_of(shape).mixture, mixture_);
    register_module("input_layernorm", input_layernorm_);
    register_module("post_attention_layernorm", post_attention_layernorm_);
  }

  torch::Tensor forward(const torch::Tensor& x, const nn::Positions& positions) override {
    const auto attended = x + self_attn_(input_layernorm_(x), positions);
    return attended + mixture_(post_attention_layernorm_(attended));
  }

 private:
  SelfAttention self_attn_;
  Mixture mixture_;
  nn::RMSNorm input_layernorm_, post_attention_layernorm_;
};

/// Each expert is divided as a feed-forward; what ranks make of a token is summed once, after its
/// experts' results were weighted. A router's gradient comes of the part that each rank has of them.
nn::TensorPlan plan_of(const ModelShape& shape) {
  using enum nn::TensorStyle;
  const auto& names = names_of(shape);
  const auto mixture = "model.layers.*." + names.mixture, expert = mixture + ".experts.*.";
  return {{.pattern = mixture, .style = region, .enters = true, .leaves = true},
          {.pattern = mixture + ".gate", .style = per_head},
          {.pattern = expert + names.gate, .style = column_wise},
          {.pattern = expert + names.up, .style = column_wise},
          {.pattern = expert + names.down, .style = row_wise, .summand = true}};
}

}  // namespace
}  // namespace moe

std::shared_ptr<LanguageModel> make_moe(const ModelShape& shape,
                                        const torch::TensorOptions& options) {
  const auto norms = shape.qk_norm ? QkNorms::each_head : QkNorms::none;
  DecoderParts parts{.tables = {{shape.head_dim, rotary_options(shape)}},
                     .feed_forward = moe::plan_of(shape),
                     .norms = norms};
  parts.make_block = [&](int64_t layer) {
    return std::make_shared<moe::Block>(
        shape,
        SelfAttentionOptions{.attention = {.window = window_of(shape, layer)}, .norms = norms},
        options);
  };
  return std::make_shared<Decoder>(shape, std::move(parts), options);
}

}  // namespace tessera::models
