// The Llama family: Llama 2 and 3 (Touvron et al., 2023; Grattafiori et al., 2024), Mistral (Jiang
// et al., 2023), Qwen2 and Qwen3 (Yang et al., 2024 and 2025). What tells them apart are fields of
// the shape.
#pragma once

#include <optional>

#include "tessera/models/language_model.h"
#include "tessera/nn/layers.h"

namespace tessera::models {

class LlamaAttentionImpl : public nn::Hookable {
 public:
  /// `index`: of the layer, which decides whether it has a window.
  LlamaAttentionImpl(const config::ModelShape& shape, int64_t index,
                     const torch::TensorOptions& options);
  /// x [B, T, D]; cos, sin [T, head_dim] -> [B, T, D]
  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& cos, const torch::Tensor& sin);

 private:
  int64_t head_dim_;
  std::optional<int64_t> window_;
  nn::Linear q_proj_, k_proj_, v_proj_, o_proj_;
  nn::RMSNorm q_norm_{nullptr}, k_norm_{nullptr};  ///< Qwen3: of every head
};
using LlamaAttention = nn::Hooked<LlamaAttentionImpl>;

/// SwiGLU: down(silu(gate(x)) * up(x)) (Shazeer, 2020).
class LlamaMlpImpl : public nn::Hookable {
 public:
  LlamaMlpImpl(const config::ModelShape& shape, const torch::TensorOptions& options);
  torch::Tensor forward(const torch::Tensor& x);  ///< [B, T, D] -> [B, T, D]

 private:
  nn::Linear gate_proj_, up_proj_, down_proj_;
};
using LlamaMlp = nn::Hooked<LlamaMlpImpl>;

class LlamaBlockImpl : public nn::Hookable {
 public:
  LlamaBlockImpl(const config::ModelShape& shape, int64_t index,
                 const torch::TensorOptions& options);
  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& cos, const torch::Tensor& sin);

 private:
  LlamaAttention self_attn_;
  LlamaMlp mlp_;
  nn::RMSNorm input_layernorm_, post_attention_layernorm_;
};
using LlamaBlock = nn::Hooked<LlamaBlockImpl>;

class LlamaTrunkImpl : public nn::Hookable {
 public:
  LlamaTrunkImpl(const config::ModelShape& shape, const torch::TensorOptions& options);
  torch::Tensor forward(
      const torch::Tensor& ids);  ///< int64 [B, T] -> hidden [B, T, D] after the final norm

  nn::Embedding embed_tokens;
  std::vector<LlamaBlock> layers;
  nn::RMSNorm norm;

 private:
  /// Rotary tables grow to the longest sequence seen, or are made anew where its length changes
  /// them all (dynamic scaling); they are not state.
  void extend_tables(int64_t seq_len, const torch::Device& device);
  bool tables_reach(int64_t seq_len) const;

  config::ModelShape shape_;
  torch::Tensor cos_, sin_;
};
using LlamaTrunk = nn::Hooked<LlamaTrunkImpl>;

class Llama : public LanguageModel {
 public:
  explicit Llama(const config::ModelShape& shape, const torch::TensorOptions& options = {});
  torch::Tensor logits(const torch::Tensor& ids) override;
  torch::Tensor loss(const torch::Tensor& ids, const torch::Tensor& targets, double scale) override;
  std::vector<Unit> units() override;
  std::vector<nn::Hookable*> blocks() override;
  nn::TensorPlan tensor_plan() const override;
  Initial initial(const std::string& parameter, int64_t dims, double std) const override;

 private:
  LlamaTrunk model_;
  nn::LanguageModelHead lm_head_;
};

}  // namespace tessera::models
