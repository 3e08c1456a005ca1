// GPT-2's modules, with the parameter names and the Conv1D layout [in, out] of its checkpoints.
#include <fmt/format.h>

#include <cmath>

#include "tessera/autograd/recompute.h"
#include "tessera/kernels/activation.h"
#include "tessera/kernels/documents.h"
#include "tessera/kernels/to_device.h"
#include "tessera/models/language_model.h"
#include "tessera/nn/attention.h"
#include "tessera/nn/dropout.h"
#include "tessera/nn/layers.h"

namespace tessera::models {
namespace gpt2 {
namespace {

using torch::Tensor;
using torch::TensorOptions;

class Gpt2BlockImpl : public nn::Hookable {
 public:
  /// `index`: of the block, which names what it drops.
  Gpt2BlockImpl(const ModelShape& shape, int64_t index, const torch::TensorOptions& options);
  /// x [B, T, D] -> [B, T, D]
  torch::Tensor forward(const torch::Tensor& x, const nn::Positions& positions);

 private:
  torch::Tensor attend(const torch::Tensor& x, const nn::Positions& positions);

  int64_t head_dim_;
  nn::LayerNorm ln_1_, ln_2_;
  nn::Conv1D c_attn_, attn_c_proj_, c_fc_, mlp_c_proj_;
  nn::Attention attention_;
  nn::Dropout attn_dropout_, mlp_dropout_;
};
using Gpt2Block = nn::Hooked<Gpt2BlockImpl>;

class Gpt2 : public LanguageModel {
 public:
  explicit Gpt2(const ModelShape& shape, const torch::TensorOptions& options = {});
  torch::Tensor embed(const torch::Tensor& ids, const RowLayout& rows) override;
  torch::Tensor run_layers(torch::Tensor hidden, int64_t begin, int64_t end,
                           const RowLayout& rows) override;
  torch::Tensor head(const torch::Tensor& hidden, const torch::Tensor& targets,
                     const kernels::TokenLoss& loss) override;
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

Gpt2BlockImpl::Gpt2BlockImpl(const ModelShape& shape, int64_t index, const TensorOptions& options)
    : head_dim_(shape.head_dim),
      ln_1_(shape.dim, shape.norm_eps, options),
      ln_2_(shape.dim, shape.norm_eps, options),
      c_attn_(shape.dim, 3 * shape.dim, options),
      attn_c_proj_(shape.dim, shape.dim, options),
      c_fc_(shape.dim, shape.ffn_dim, options),
      mlp_c_proj_(shape.ffn_dim, shape.dim, options),
      attn_dropout_(fmt::format("transformer.h.{}.attn.resid_dropout", index), shape.dropout),
      mlp_dropout_(fmt::format("transformer.h.{}.mlp.dropout", index), shape.dropout) {
  register_module("ln_1", ln_1_);
  auto attention = register_module("attn", std::make_shared<torch::nn::Module>());
  attention->register_module("c_attn", c_attn_);
  attention->register_module("c_proj", attn_c_proj_);
  attention->register_module("resid_dropout", attn_dropout_);
  attention->register_module("attention", attention_);
  register_module("ln_2", ln_2_);
  auto mlp = register_module("mlp", std::make_shared<torch::nn::Module>());
  mlp->register_module("c_fc", c_fc_);
  mlp->register_module("c_proj", mlp_c_proj_);
  mlp->register_module("dropout", mlp_dropout_);
}

Tensor Gpt2BlockImpl::attend(const Tensor& x, const nn::Positions& positions) {
  const auto projected = c_attn_(x);
  const auto batch = projected.size(0), seq_len = projected.size(1);
  const auto qkv = projected.view({batch, seq_len, 3, -1, head_dim_}).unbind(2);
  return attn_c_proj_(attention_(qkv[0], qkv[1], qkv[2], positions));
}

Tensor Gpt2BlockImpl::forward(const Tensor& x, const nn::Positions& positions) {
  const auto attended = x + attn_dropout_(attend(ln_1_(x), positions));
  return autograd::residual_sum(
      attended, mlp_dropout_(mlp_c_proj_(kernels::gelu_tanh(c_fc_(ln_2_(attended))))));
}

Gpt2::Gpt2(const ModelShape& shape, const TensorOptions& options)
    : LanguageModel(shape),
      wte_(shape.vocab_size, shape.dim, options),
      wpe_(shape.max_seq_len, shape.dim, options),
      drop_("transformer.drop", shape.dropout),
      ln_f_(shape.dim, shape.norm_eps, options),
      lm_head_(nullptr) {
  auto transformer = register_module("transformer", std::make_shared<torch::nn::Module>());
  transformer->register_module("wte", wte_);
  transformer->register_module("wpe", wpe_);
  transformer->register_module("drop", drop_);
  auto list = transformer->register_module("h", std::make_shared<torch::nn::Module>());
  for (int64_t i = 0; i < shape.num_layers; ++i) {
    blocks_.emplace_back(shape, i, options);
    list->register_module(std::to_string(i), blocks_.back());
  }
  transformer->register_module("ln_f", ln_f_);
  if (shape.tie_embeddings) {
    lm_head_ = nn::LanguageModelHead(wte_->weight);
  } else {
    lm_head_ = nn::LanguageModelHead(shape.dim, shape.vocab_size, options);
  }
  register_module("lm_head", lm_head_);
}

Tensor Gpt2::embed(const Tensor& ids, const RowLayout& rows) {
  const auto batch = ids.size(0), seq_len = ids.size(1), first = rows.first_position;
  const auto length = first + kernels::longest_document(rows.documents, seq_len);
  TORCH_CHECK_VALUE(length <= shape().max_seq_len, "sequence length: expected at most ",
                    shape().max_seq_len, " positions of this GPT-2, got ", length);
  const auto positions =
      rows.documents.defined()
          ? kernels::to_device(kernels::document_positions(rows.documents, batch, seq_len),
                               ids.device())
          : torch::arange(first, first + seq_len, ids.options());
  return drop_(wte_(ids) + wpe_(positions));
}

Tensor Gpt2::run_layers(Tensor hidden, int64_t begin, int64_t end, const RowLayout& rows) {
  const nn::Positions positions{.cos = {}, .sin = {}, .documents = rows.documents};
  for (int64_t i = begin; i < end; ++i) hidden = blocks_[i](std::move(hidden), positions);
  return hidden;
}

Tensor Gpt2::head(const Tensor& hidden, const Tensor& targets, const kernels::TokenLoss& loss) {
  return lm_head_(ln_f_(hidden), targets, loss);
}

LanguageModel::Layout Gpt2::layout() const {
  return {.embedding = {"transformer.wte", "transformer.wpe", "transformer.drop"},
          .layers = numbered("transformer.h.", shape().num_layers),
          .head = {"transformer.ln_f", "lm_head"}};
}

nn::TensorPlan Gpt2::tensor_plan() const {
  using enum nn::TensorStyle;
  const auto heads = shape().num_heads;
  return {{.pattern = "transformer.wte", .style = embedding},
          {.pattern = "transformer.wpe", .style = positions},
          // An adapter's dropout, too, has such a name, but sees whole rows.
          {.pattern = "transformer.drop", .style = per_position},
          {.pattern = "transformer.h.*.resid_dropout", .style = per_position},
          {.pattern = "transformer.h.*.mlp.dropout", .style = per_position},
          {.pattern = "transformer.*ln_*", .style = per_position},
          {.pattern = "transformer.h.*.attn.c_attn",
           .style = column_wise,
           .enters = true,
           .heads = heads,
           .parts = 3},
          {.pattern = "transformer.h.*.attn.c_proj", .style = row_wise, .heads = heads},
          {.pattern = "transformer.h.*.mlp.c_fc", .style = column_wise, .enters = true},
          {.pattern = "transformer.h.*.mlp.c_proj", .style = row_wise},
          {.pattern = "lm_head", .style = head, .enters = true}};
}

// Projections back into the residual stream start smaller by the square root of their number
// (section 2.3).
LanguageModel::Initial Gpt2::initial(const std::string& parameter, int64_t dims, double std) const {
  if (parameter.ends_with(".bias")) return {.constant = true, .value = 0};
  if (dims == 1) return {.constant = true, .value = 1};
  const bool residual = parameter.ends_with("c_proj.weight");
  return {.value = residual ? std / std::sqrt(2.0 * static_cast<double>(shape().num_layers)) : std};
}

}  // namespace
}  // namespace gpt2

std::shared_ptr<LanguageModel> make_gpt2(const ModelShape& shape,
                                         const torch::TensorOptions& options) {
  return std::make_shared<gpt2::Gpt2>(shape, options);
}

}  // namespace tessera::models
