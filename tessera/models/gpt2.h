// GPT-2 (Radford et al., 2019), with the parameter names and the Conv1D layout [in, out] of its
// checkpoints.
#pragma once

#include "tessera/models/language_model.h"
#include "tessera/nn/dropout.h"
#include "tessera/nn/layers.h"

namespace tessera::models {

class Gpt2BlockImpl : public nn::Hookable {
 public:
  /// `index`: of the block, which names what it drops.
  Gpt2BlockImpl(const config::ModelShape& shape, int64_t index,
                const torch::TensorOptions& options);
  torch::Tensor forward(const torch::Tensor& x);  ///< [B, T, D] -> [B, T, D]

 private:
  torch::Tensor attend(const torch::Tensor& x);

  int64_t head_dim_;
  nn::LayerNorm ln_1_, ln_2_;
  nn::Conv1D c_attn_, attn_c_proj_, c_fc_, mlp_c_proj_;
  nn::Dropout attn_dropout_, mlp_dropout_;
};
using Gpt2Block = nn::Hooked<Gpt2BlockImpl>;

class Gpt2 : public LanguageModel {
 public:
  explicit Gpt2(const config::ModelShape& shape, const torch::TensorOptions& options = {});
  torch::Tensor embed(const torch::Tensor& ids) override;
  torch::Tensor run_layers(torch::Tensor hidden, int64_t begin, int64_t end,
                           int64_t seq_len) override;
  torch::Tensor head(const torch::Tensor& hidden, const torch::Tensor& targets,
                     double scale) override;
  Layout layout() const override;
  nn::TensorPlan tensor_plan() const override;
  Initial initial(const std::string& parameter, int64_t dims, double std) const override;

 private:
  nn::Embedding wte_, wpe_;
  nn::Dropout drop_;
  std::vector<Gpt2Block> blocks_;
  nn::LayerNorm ln_f_;
  nn::LanguageModelHead lm_head_;
};

}  // namespace tessera::models
