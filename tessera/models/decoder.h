// The decoder that families build theirs of: token embedding, blocks of self-attention and a gated
// feed-forward, a last norm and the head, under the names that Hugging Face gave Llama's.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tessera/kernels/rotary.h"
#include "tessera/models/language_model.h"
#include "tessera/nn/attention.h"
#include "tessera/nn/layers.h"

namespace tessera::models {

/// RMS norms of queries and keys, before they are rotated.
enum class QkNorms { none, each_head, all_heads };

struct SelfAttentionOptions {
  kernels::AttentionOptions attention;
  QkNorms norms = QkNorms::none;
  double norm_offset = 0;  ///< nn::RMSNorm's
  bool rotates = true;     ///< false: without positions
  bool sinks = false;      ///< a learned score for each head (kernels/attention.h)
};

/// How the positions of a block see each other: x [B, T, D] -> [B, T, D].
class AnyAttentionImpl : public nn::Hookable {
 public:
  virtual torch::Tensor forward(const torch::Tensor& x, const nn::Positions& positions) = 0;
};
using AnyAttention = nn::Hooked<AnyAttentionImpl>;

/// Attention with separate projections and grouped queries.
class SelfAttentionImpl : public AnyAttentionImpl {
 public:
  SelfAttentionImpl(const ModelShape& shape, const SelfAttentionOptions& attention,
                    const torch::TensorOptions& options);
  torch::Tensor forward(const torch::Tensor& x, const nn::Positions& positions) override;

 private:
  int64_t head_dim_;
  bool rotates_, norms_all_heads_ = false;
  nn::Linear q_proj_, k_proj_, v_proj_, o_proj_;
  nn::RMSNorm q_norm_{nullptr}, k_norm_{nullptr};
  nn::Attention attention_;
  torch::Tensor sinks_;  // [H], or undefined
};
using SelfAttention = nn::Hooked<SelfAttentionImpl>;

enum class Activation { silu, gelu_tanh };

/// What a block does with each position by itself: [B, T, D] -> [B, T, D].
class FeedForwardImpl : public nn::Hookable {
 public:
  virtual torch::Tensor forward(const torch::Tensor& x) = 0;
};
using FeedForward = nn::Hooked<FeedForwardImpl>;

/// down(activation(gate(x)) * up(x)) (Shazeer, GLU Variants Improve Transformer, 2020).
class GatedMlpImpl : public FeedForwardImpl {
 public:
  GatedMlpImpl(const ModelShape& shape, const torch::TensorOptions& options,
               Activation activation = Activation::silu);
  torch::Tensor forward(const torch::Tensor& x) override;

 private:
  Activation activation_;
  nn::Linear gate_proj_, up_proj_, down_proj_;
};
using GatedMlp = nn::Hooked<GatedMlpImpl>;

/// A block of a family: how attention, feed-forward and norms follow each other. Its norms are
/// named `.._layernorm`, its parts `self_attn` and, mostly, `mlp`.
class DecoderBlockImpl : public nn::Hookable {
 public:
  virtual torch::Tensor forward(const torch::Tensor& x, const nn::Positions& positions) = 0;
};
using DecoderBlock = nn::Hooked<DecoderBlockImpl>;

/// Which feed-forward a block has, and what it is called there.
struct FeedForwardPart {
  std::string name = "mlp";
  std::shared_ptr<FeedForwardImpl> module;  ///< null: a GatedMlp
};

/// A block whose parts stand behind a norm each, as Llama's: input_layernorm and
/// post_attention_layernorm.
std::shared_ptr<DecoderBlockImpl> make_pre_norm_block(const ModelShape& shape,
                                                      const SelfAttentionOptions& attention,
                                                      const torch::TensorOptions& options,
                                                      FeedForwardPart feed_forward = {});
/// The same around another attention.
std::shared_ptr<DecoderBlockImpl> make_pre_norm_block(const ModelShape& shape,
                                                      std::shared_ptr<AnyAttentionImpl> attention,
                                                      const torch::TensorOptions& options,
                                                      FeedForwardPart feed_forward);

/// Cosines and sines for positions 0, 1, ..; not state of the model. They grow to the longest
/// sequence seen, or are made anew where its length changes them all (dynamic scaling, longrope).
class RotaryTables {
 public:
  RotaryTables(int64_t width, kernels::RotaryTablesOptions options)
      : width_(width), options_(std::move(options)) {}

  /// The positions of `batch` rows: cos and sin [T, width], with documents [B, T, width]. Where they depend on the
  /// sequence's length, that is each document's own.
  nn::Positions at(const RowLayout& rows, int64_t batch, const torch::Device& device);

 private:
  nn::Positions of_each_length(const RowLayout& rows, int64_t batch,
                               const torch::Device& device) const;
  bool by_length() const;  ///< do all angles depend on the sequence's length?
  bool reach(int64_t length) const;
  int64_t rows_for(int64_t length) const;  ///< of a new table: a text that grows needs few

  int64_t width_;
  kernels::RotaryTablesOptions options_;
  torch::Tensor cos_, sin_;
};

/// Theta and scaling of the shape.
kernels::RotaryTablesOptions rotary_options(const ModelShape& shape);

/// How GatedMlp, a block's `mlp`, is divided.
nn::TensorPlan gated_mlp_plan();

/// What a family's decoder is made of.
struct DecoderParts {
  std::function<std::shared_ptr<DecoderBlockImpl>(int64_t layer)> make_block;
  std::vector<RotaryTables> tables;
  std::function<size_t(int64_t layer)> table_of = [](int64_t /*layer*/) { return size_t{0}; };
  nn::TensorPlan feed_forward = gated_mlp_plan();
  nn::TensorPlan attention;       ///< of the blocks' norms and `self_attn`; empty: SelfAttention's
  QkNorms norms = QkNorms::none;  ///< of its blocks
  double norm_offset = 0;         ///< of all norms
  double logits_softcap = 0;      ///< nn::LanguageModelHead's
  double embedding_scale = 1;     ///< of what the embedding gives, rounded to its dtype
};

class Decoder : public LanguageModel {
 public:
  Decoder(const ModelShape& shape, DecoderParts parts, const torch::TensorOptions& options);
  torch::Tensor embed(const torch::Tensor& ids, const RowLayout& rows) override;
  torch::Tensor run_layers(torch::Tensor hidden, int64_t begin, int64_t end,
                           const RowLayout& rows) override;
  torch::Tensor head(const torch::Tensor& hidden, const torch::Tensor& targets,
                     const kernels::TokenLoss& loss) override;
  Layout layout() const override;
  nn::TensorPlan tensor_plan() const override;
  Initial initial(const std::string& parameter, int64_t dims, double std) const override;

 private:
  std::vector<RotaryTables> tables_;
  std::function<size_t(int64_t)> table_of_;
  nn::TensorPlan feed_forward_, attention_;
  double norm_offset_, embedding_scale_;
  nn::Embedding embed_tokens_;
  std::vector<DecoderBlock> layers_;
  nn::RMSNorm norm_;
  nn::LanguageModelHead lm_head_;
};

}  // namespace tessera::models
