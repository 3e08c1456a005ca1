#include <cmath>

#include "tessera/models/decoder.h"
#include "tessera/models/gemma/shape.h"

namespace tessera::models {
namespace gemma {
namespace {

constexpr double kNormOffset = 1;

/// Each part stands between two norms.
class Block : public DecoderBlockImpl {
 public:
  Block(const ModelShape& shape, const SelfAttentionOptions& attention,
        const torch::TensorOptions& options)
      : self_attn_(shape, attention, options),
        mlp_(shape, options, Activation::gelu_tanh),
        input_layernorm_(shape.dim, shape.norm_eps, options, kNormOffset),
        post_attention_layernorm_(shape.dim, shape.norm_eps, options, kNormOffset),
        pre_feedforward_layernorm_(shape.dim, shape.norm_eps, options, kNormOffset),
        post_feedforward_layernorm_(shape.dim, shape.norm_eps, options, kNormOffset) {
    register_module("self_attn", self_attn_);
    register_module("mlp", mlp_);
    register_module("input_layernorm", input_layernorm_);
    register_module("post_attention_layernorm", post_attention_layernorm_);
    register_module("pre_feedforward_layernorm", pre_feedforward_layernorm_);
    register_module("post_feedforward_layernorm", post_feedforward_layernorm_);
  }

  torch::Tensor forward(const torch::Tensor& x, const nn::Positions& positions) override {
    const auto attended = x + post_attention_layernorm_(self_attn_(input_layernorm_(x), positions));
    return attended + post_feedforward_layernorm_(mlp_(pre_feedforward_layernorm_(attended)));
  }

 private:
  SelfAttention self_attn_;
  GatedMlp mlp_;
  nn::RMSNorm input_layernorm_, post_attention_layernorm_, pre_feedforward_layernorm_,
      post_feedforward_layernorm_;
};

}  // namespace
}  // namespace gemma

std::shared_ptr<LanguageModel> make_gemma(const ModelShape& shape,
                                          const torch::TensorOptions& options) {
  const auto& facts = shape.own.as<gemma::Facts>();
  const auto norms = shape.qk_norm ? QkNorms::each_head : QkNorms::none;
  DecoderParts parts{.tables = {{shape.head_dim, rotary_options(shape)}},
                     .norms = norms,
                     .norm_offset = gemma::kNormOffset,
                     .logits_softcap = facts.logits_softcap,
                     .embedding_scale = std::sqrt(static_cast<double>(shape.dim))};
  if (facts.local_theta != 0) {
    parts.tables.emplace_back(shape.head_dim,
                              kernels::RotaryTablesOptions{.theta = facts.local_theta});
    parts.table_of = [shape](int64_t layer) { return size_t{window_of(shape, layer) ? 1U : 0U}; };
  }
  const auto softcap =
      facts.attention_softcap == 0 ? std::nullopt : std::optional(facts.attention_softcap);
  parts.make_block = [&](int64_t layer) {
    const SelfAttentionOptions attention{.attention = {.window = window_of(shape, layer),
                                                       .scale = 1 / std::sqrt(facts.query_scalar),
                                                       .softcap = softcap},
                                         .norms = norms,
                                         .norm_offset = gemma::kNormOffset};
    return std::make_shared<gemma::Block>(shape, attention, options);
  };
  return std::make_shared<Decoder>(shape, std::move(parts), options);
}

}  // namespace tessera::models
