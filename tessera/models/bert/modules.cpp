#include "tessera/models/bert/modules.h"

#include <ATen/ops/gelu.h>
#include <ATen/ops/scaled_dot_product_attention.h>

#include "tessera/kernels/attention.h"
#include "tessera/kernels/linear.h"
#include "tessera/nn/linears.h"

namespace tessera::models {

using torch::Tensor;
using torch::TensorOptions;

namespace {

/// A child that only gives its own children their names.
torch::nn::Module& group(torch::nn::Module& parent, const std::string& name) {
  return *parent.register_module(name, std::make_shared<torch::nn::Module>());
}

}  // namespace

BertLayerImpl::BertLayerImpl(const BertShape& shape, const TensorOptions& options)
    : num_heads_(shape.num_heads),
      query_(shape.dim, shape.dim, true, options),
      key_(shape.dim, shape.dim, true, options),
      value_(shape.dim, shape.dim, true, options),
      attention_dense_(shape.dim, shape.dim, true, options),
      intermediate_dense_(shape.dim, shape.ffn_dim, true, options),
      output_dense_(shape.ffn_dim, shape.dim, true, options),
      attention_norm_(shape.dim, shape.norm_eps, options),
      output_norm_(shape.dim, shape.norm_eps, options) {
  auto& attention = group(*this, "attention");
  auto& self = group(attention, "self");
  self.register_module("query", query_);
  self.register_module("key", key_);
  self.register_module("value", value_);
  auto& attention_output = group(attention, "output");
  attention_output.register_module("dense", attention_dense_);
  attention_output.register_module("LayerNorm", attention_norm_);
  group(*this, "intermediate").register_module("dense", intermediate_dense_);
  auto& output = group(*this, "output");
  output.register_module("dense", output_dense_);
  output.register_module("LayerNorm", output_norm_);
}

Tensor BertLayerImpl::attend(const Tensor& x, const Tensor& visible) {
  auto heads = nn::linears(x, {query_, key_, value_});
  for (auto& each : heads) each = each.unflatten(2, {num_heads_, -1});  // [B, T, H, D / H]
  const auto &q = heads[0], &k = heads[1], &v = heads[2];
  if (!visible.defined()) return kernels::attention(q, k, v, {.causal = false}).flatten(2);
  return at::scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2),
                                          visible)
      .transpose(1, 2)
      .flatten(2);
}

Tensor BertLayerImpl::forward(const Tensor& x, const Tensor& visible) {
  const auto attended = attention_norm_(x + attention_dense_(attend(x, visible)));
  return output_norm_(attended + output_dense_(at::gelu(intermediate_dense_(attended))));
}

Bert::Bert(const BertShape& shape, const TensorOptions& options)
    : shape_(shape),
      word_embeddings_(shape.vocab_size, shape.dim, options),
      position_embeddings_(shape.max_seq_len, shape.dim, options),
      token_type_embeddings_(shape.num_token_types, shape.dim, options),
      embedding_norm_(shape.dim, shape.norm_eps, options) {
  register_encoder(options);
  register_head(options);
}

void Bert::register_encoder(const TensorOptions& options) {
  auto& bert = group(*this, "bert");
  auto& embeddings = group(bert, "embeddings");
  embeddings.register_module("word_embeddings", word_embeddings_);
  embeddings.register_module("position_embeddings", position_embeddings_);
  embeddings.register_module("token_type_embeddings", token_type_embeddings_);
  embeddings.register_module("LayerNorm", embedding_norm_);
  auto& list = group(group(bert, "encoder"), "layer");
  for (int64_t i = 0; i < shape_.num_layers; ++i) {
    layers_.emplace_back(shape_, options);
    list.register_module(std::to_string(i), layers_.back());
  }
  if (shape_.head != BertHead::sequence_classification) return;
  pooler_ = nn::Linear(shape_.dim, shape_.dim, true, options);
  group(bert, "pooler").register_module("dense", pooler_);
}

void Bert::register_head(const TensorOptions& options) {
  if (shape_.head == BertHead::sequence_classification) {
    classifier_ = nn::Linear(shape_.dim, shape_.num_labels, true, options);
    register_module("classifier", classifier_);
    return;
  }
  auto& predictions = group(group(*this, "cls"), "predictions");
  vocabulary_bias_ =
      predictions.register_parameter("bias", torch::empty({shape_.vocab_size}, options));
  auto& transform = group(predictions, "transform");
  transform_ = nn::Linear(shape_.dim, shape_.dim, true, options);
  transform_norm_ = nn::LayerNorm(shape_.dim, shape_.norm_eps, options);
  transform.register_module("dense", transform_);
  transform.register_module("LayerNorm", transform_norm_);
}

Tensor Bert::hidden(const Tensor& ids, const Tensor& token_types, const Tensor& mask) {
  const auto seq_len = ids.size(1);
  TORCH_CHECK_VALUE(seq_len <= shape_.max_seq_len, "sequence length: expected at most ",
                    shape_.max_seq_len, " positions of this BERT, got ", seq_len);
  const auto types = token_types.defined() ? token_types : torch::zeros_like(ids);
  const auto positions = torch::arange(seq_len, ids.options());
  auto x = embedding_norm_(word_embeddings_(ids) + token_type_embeddings_(types) +
                           position_embeddings_(positions));
  const auto visible = mask.defined() ? mask.ne(0).unsqueeze(1).unsqueeze(1) : Tensor();
  for (auto& layer : layers_) x = layer(x, visible);
  return x;
}

Tensor Bert::logits(const Tensor& ids, const Tensor& token_types, const Tensor& mask) {
  const auto x = hidden(ids, token_types, mask);
  if (shape_.head == BertHead::sequence_classification) {
    return classifier_(torch::tanh(pooler_(x.select(1, 0))));
  }
  const auto transformed = transform_norm_(at::gelu(transform_(x)));
  return kernels::linear(transformed, word_embeddings_->weight, vocabulary_bias_);
}

}  // namespace tessera::models
