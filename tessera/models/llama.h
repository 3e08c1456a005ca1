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

class Llama : public LanguageModel {
 public:
  explicit Llama(const config::ModelShape& shape, const torch::TensorOptions& options = {});
  torch::Tensor embed(const torch::Tensor& ids) override;
  torch::Tensor run_layers(torch::Tensor hidden, int64_t begin, int64_t end,
                           int64_t seq_len) override;
  torch::Tensor head(const torch::Tensor& hidden, const torch::Tensor& targets,
                     double scale) override;
  Layout layout() const override;
  nn::TensorPlan tensor_plan() const override;
  Initial initial(const std::string& parameter, int64_t dims, double std) const override;

 private:
  /// Rotary tables grow to the longest sequence seen, or are made anew where its length changes
  /// them all (dynamic scaling); they are not state.
  void extend_tables(int64_t seq_len, const torch::Device& device);
  bool tables_reach(int64_t seq_len) const;

  nn::Embedding embed_tokens_;
  std::vector<LlamaBlock> layers_;
  nn::RMSNorm norm_;
  nn::LanguageModelHead lm_head_;
  torch::Tensor cos_, sin_;
};

}  // namespace tessera::models
