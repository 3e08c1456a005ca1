#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>

#include "tessera/kernels/rotary.h"
#include "tessera/models/deepseek/shape.h"
#include "tessera/models/mixture.h"

namespace tessera::models {
namespace deepseek {
namespace {

using torch::Tensor;

constexpr double kInnerEps = 1e-6;  // whatever rms_norm_eps says of the others

/// Attention of latent vectors (DeepSeek-V2, 2024, section 2.1): queries of one, keys and values of
/// another, from which each head's are multiplied; beside them a part that is rotated, of keys one for
/// all heads.
class LatentAttentionImpl : public AnyAttentionImpl {
 public:
  LatentAttentionImpl(const ModelShape& shape, const torch::TensorOptions& options)
      : facts_(shape.own.as<Facts>()),
        head_dim_(shape.head_dim),
        kv_a_proj_(shape.dim, facts_.key_rank + facts_.rotated_width, shape.out_bias, options),
        kv_a_layernorm_(facts_.key_rank, kInnerEps, options),
        kv_b_proj_(facts_.key_rank,
                   shape.num_heads * (head_dim_ - facts_.rotated_width + facts_.value_width), false,
                   options),
        o_proj_(shape.num_heads * facts_.value_width, shape.dim, shape.out_bias, options),
        attention_(kernels::AttentionOptions{.scale = score_scale(shape)}) {
    const int64_t queries = shape.num_heads * head_dim_;
    if (facts_.query_rank > 0) {
      q_a_proj_ = register_module(
          "q_a_proj", nn::Linear(shape.dim, facts_.query_rank, shape.out_bias, options));
      q_a_layernorm_ =
          register_module("q_a_layernorm", nn::RMSNorm(facts_.query_rank, kInnerEps, options));
      q_b_proj_ =
          register_module("q_b_proj", nn::Linear(facts_.query_rank, queries, false, options));
    } else {
      q_proj_ = register_module("q_proj", nn::Linear(shape.dim, queries, false, options));
    }
    register_module("kv_a_proj_with_mqa", kv_a_proj_);
    register_module("kv_a_layernorm", kv_a_layernorm_);
    register_module("kv_b_proj", kv_b_proj_);
    register_module("o_proj", o_proj_);
    register_module("attention", attention_);
  }

  Tensor forward(const Tensor& x, const nn::Positions& positions) override {
    const int64_t rotated = facts_.rotated_width, plain = head_dim_ - rotated;
    // The number of heads is that of the weights here, which may be a part.
    const auto in_heads = [&](const Tensor& features, int64_t width) {
      return features.view({x.size(0), x.size(1), -1, width});
    };
    const auto q =
        in_heads(q_proj_ ? q_proj_(x) : q_b_proj_(q_a_layernorm_(q_a_proj_(x))), head_dim_);
    const auto latent = kv_a_proj_(x);
    const auto keys_and_values =
        in_heads(kv_b_proj_(kv_a_layernorm_(latent.narrow(-1, 0, facts_.key_rank))),
                 plain + facts_.value_width);
    const auto turned_key =
        turned(in_heads(latent.narrow(-1, facts_.key_rank, rotated), rotated), positions);
    auto sizes = q.sizes().vec();
    sizes.back() = rotated;
    const auto k = at::cat({keys_and_values.narrow(-1, 0, plain), turned_key.expand(sizes)}, -1);
    // Scores take queries and keys of one width, and so do values.
    const int64_t missing = head_dim_ - facts_.value_width;
    auto v = keys_and_values.narrow(-1, plain, facts_.value_width);
    if (missing > 0) v = at::constant_pad_nd(v, {0, missing});
    const auto all =
        at::cat({q.narrow(-1, 0, plain), turned(q.narrow(-1, plain, rotated), positions)}, -1);
    const nn::Positions unrotated{.cos = {}, .sin = {}, .documents = positions.documents};
    auto result = attention_(all, k, v, unrotated);
    if (missing > 0) {
      result = in_heads(result, head_dim_).narrow(-1, 0, facts_.value_width).flatten(2);
    }
    return o_proj_(result);
  }

 private:
  Tensor turned(const Tensor& x, const nn::Positions& positions) const {
    // Pairs of neighbours become pairs of halves.
    const auto halves =
        facts_.interleaved ? x.unflatten(-1, {-1, 2}).transpose(-1, -2).flatten(-2) : x;
    return kernels::rotary(halves, positions.cos, positions.sin);
  }

  Facts facts_;
  int64_t head_dim_;
  nn::Linear q_proj_{nullptr}, q_a_proj_{nullptr}, q_b_proj_{nullptr};
  nn::RMSNorm q_a_layernorm_{nullptr};
  nn::Linear kv_a_proj_;
  nn::RMSNorm kv_a_layernorm_;
  nn::Linear kv_b_proj_, o_proj_;
  nn::Attention attention_;
};

/// Latent vectors are whole on each rank of tp, whose gradients come of the heads that it has.
nn::TensorPlan attention_plan(const ModelShape& shape) {
  using enum nn::TensorStyle;
  const std::string attention = "model.layers.*.self_attn";
  nn::TensorPlan plan{
      {.pattern = "model.layers.*.input_layernorm", .style = per_position},
      {.pattern = "model.layers.*.post_attention_layernorm", .style = per_position},
      {.pattern = attention, .style = region, .enters = true},
      {.pattern = attention + ".kv_a_*", .style = per_head},
      {.pattern = attention + ".kv_b_proj", .style = column_wise, .heads = shape.num_heads},
      {.pattern = attention + ".o_proj", .style = row_wise, .heads = shape.num_heads}};
  const bool latent = shape.own.as<Facts>().query_rank > 0;
  if (latent) plan.push_back({.pattern = attention + ".q_a_*", .style = per_head});
  plan.push_back({.pattern = attention + (latent ? ".q_b_proj" : ".q_proj"),
                  .style = column_wise,
                  .heads = shape.num_heads});
  return plan;
}

}  // namespace
}  // namespace deepseek

std::shared_ptr<LanguageModel> make_deepseek(const ModelShape& shape,
                                             const torch::TensorOptions& options) {
  const auto& facts = shape.own.as<deepseek::Facts>();
  const auto& names = deepseek::mixture_names(shape);
  auto router = router_options(shape);
  router.scores = nn::RouterScores::sigmoid;
  router.scale = facts.expert_scale;
  DecoderParts parts{.tables = {{facts.rotated_width, rotary_options(shape)}},
                     .feed_forward = mixture_plan(shape, names),
                     .attention = deepseek::attention_plan(shape)};
  parts.make_block = [&](int64_t layer) {
    const auto own = shape_of_layer(shape, layer);
    FeedForwardPart feed_forward;
    if (own.experts.num > 0) feed_forward.module = make_mixture(own, names, router, options);
    return make_pre_norm_block(own, std::make_shared<deepseek::LatentAttentionImpl>(own, options),
                               options, std::move(feed_forward));
  };
  return std::make_shared<Decoder>(shape, std::move(parts), options);
}

}  // namespace tessera::models
