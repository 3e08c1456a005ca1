#include "tessera/models/decoder.h"

namespace tessera::models {
namespace olmo2 {
namespace {

/// Each part's result has a norm.
class Block : public DecoderBlockImpl {
 public:
  Block(const ModelShape& shape, std::optional<int64_t> window, const torch::TensorOptions& options)
      : self_attn_(
            shape,
            SelfAttentionOptions{.attention = {.window = window}, .norms = QkNorms::all_heads},
            options),
        mlp_(shape, options),
        post_attention_layernorm_(shape.dim, shape.norm_eps, options),
        post_feedforward_layernorm_(shape.dim, shape.norm_eps, options) {
    register_module("self_attn", self_attn_);
    register_module("mlp", mlp_);
    register_module("post_attention_layernorm", post_attention_layernorm_);
    register_module("post_feedforward_layernorm", post_feedforward_layernorm_);
  }

  torch::Tensor forward(const torch::Tensor& x, const nn::Positions& positions) override {
    const auto attended = x + post_attention_layernorm_(self_attn_(x, positions));
    return attended + post_feedforward_layernorm_(mlp_(attended));
  }

 private:
  SelfAttention self_attn_;
  GatedMlp mlp_;
  nn::RMSNorm post_attention_layernorm_, post_feedforward_layernorm_;
};

}  // namespace
}  // namespace olmo2

std::shared_ptr<LanguageModel> make_olmo2(const ModelShape& shape,
                                          const torch::TensorOptions& options) {
  DecoderParts parts{.tables = {{shape.head_dim, rotary_options(shape)}},
                     .norms = QkNorms::all_heads};
  parts.make_block = [&](int64_t layer) {
    return std::make_shared<olmo2::Block>(shape, window_of(shape, layer), options);
  };
  return std::make_shared<Decoder>(shape, std::move(parts), options);
}

}  // namespace tessera::models
