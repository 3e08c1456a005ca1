// BERT (Devlin et al., 2019): an encoder and one of two heads, with Hugging Face's parameter names.
#pragma once

#include <vector>

#include "tessera/models/bert/shape.h"
#include "tessera/nn/layers.h"

namespace tessera::models {

/// Self-attention and a feed-forward part, each normalised after its residual sum.
class BertLayerImpl : public nn::Hookable {
 public:
  BertLayerImpl(const BertShape& shape, const torch::TensorOptions& options);
  /// x [B, T, D]; visible bool [B, 1, 1, T] (undefined: all) -> [B, T, D]
  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& visible);

 private:
  torch::Tensor attend(const torch::Tensor& x, const torch::Tensor& visible);

  int64_t num_heads_;
  nn::Linear query_, key_, value_, attention_dense_, intermediate_dense_, output_dense_;
  nn::LayerNorm attention_norm_, output_norm_;
};
using BertLayer = nn::Hooked<BertLayerImpl>;

class Bert : public nn::Hookable {
 public:
  explicit Bert(const BertShape& shape, const torch::TensorOptions& options = {});

  /// int64 ids, token_types and mask [B, T]; mask 0: padding, seen by no one; token_types and mask
  /// may be undefined (all 0, all 1). Logits [B, T, V] of the masked-LM head, [B, num_labels] of
  /// the other. ValueError if T exceeds the table of positions.
  torch::Tensor logits(const torch::Tensor& ids, const torch::Tensor& token_types = {},
                       const torch::Tensor& mask = {});

  const BertShape& shape() const { return shape_; }

 private:
  void register_encoder(const torch::TensorOptions& options);
  void register_head(const torch::TensorOptions& options);
  torch::Tensor hidden(const torch::Tensor& ids, const torch::Tensor& token_types,
                       const torch::Tensor& mask);

  BertShape shape_;
  nn::Embedding word_embeddings_, position_embeddings_, token_type_embeddings_;
  nn::LayerNorm embedding_norm_;
  std::vector<BertLayer> layers_;
  nn::Linear transform_{nullptr};  ///< masked_lm; its head's weight is the word embeddings'
  nn::LayerNorm transform_norm_{nullptr};
  torch::Tensor vocabulary_bias_;
  nn::Linear pooler_{nullptr}, classifier_{nullptr};  ///< sequence_classification
};

}  // namespace tessera::models
