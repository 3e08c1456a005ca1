#include "tessera/models/decoder.h"

#include <algorithm>
#include <bit>
#include <map>
#include <tuple>
#include <utility>

#include "tessera/autograd/recompute.h"
#include "tessera/kernels/activation.h"
#include "tessera/kernels/documents.h"
#include "tessera/kernels/to_device.h"
#include "tessera/nn/linears.h"

namespace tessera::models {

using torch::Tensor;
using torch::TensorOptions;

SelfAttentionImpl::SelfAttentionImpl(const ModelShape& shape, const SelfAttentionOptions& attention,
                                     const TensorOptions& options)
    : head_dim_(shape.head_dim),
      rotates_(attention.rotates),
      q_proj_(shape.dim, shape.num_heads * head_dim_, shape.qkv_bias, options),
      k_proj_(shape.dim, shape.num_kv_heads * head_dim_, shape.qkv_bias, options),
      v_proj_(shape.dim, shape.num_kv_heads * head_dim_, shape.qkv_bias, options),
      o_proj_(shape.num_heads * head_dim_, shape.dim, shape.out_bias, options),
      attention_(attention.attention) {
  register_module("q_proj", q_proj_);
  register_module("k_proj", k_proj_);
  register_module("v_proj", v_proj_);
  register_module("o_proj", o_proj_);
  register_module("attention", attention_);
  if (attention.sinks) {
    sinks_ = register_parameter("sinks", torch::empty({shape.num_heads}, options));
  }
  if (attention.norms == QkNorms::none) return;
  norms_all_heads_ = attention.norms == QkNorms::all_heads;
  const auto norm = [&](int64_t heads) {
    return nn::RMSNorm(norms_all_heads_ ? heads * head_dim_ : head_dim_, shape.norm_eps, options,
                       attention.norm_offset);
  };
  q_norm_ = register_module("q_norm", norm(shape.num_heads));
  k_norm_ = register_module("k_norm", norm(shape.num_kv_heads));
}

Tensor SelfAttentionImpl::forward(const Tensor& x, const nn::Positions& positions) {
  const auto batch = x.size(0), seq_len = x.size(1);
  // The number of heads is that of the weights here, which may be a part.
  const auto in_heads = [&](const Tensor& features) {
    return features.view({batch, seq_len, -1, head_dim_});
  };
  const auto projected = nn::linears(x, {q_proj_, k_proj_, v_proj_});
  auto q = projected[0], k = projected[1];
  if (norms_all_heads_) q = q_norm_(q), k = k_norm_(k);
  q = in_heads(q), k = in_heads(k);
  const auto v = in_heads(projected[2]);
  if (q_norm_ && !norms_all_heads_) q = q_norm_(q), k = k_norm_(k);
  const nn::Positions unrotated{.cos = {}, .sin = {}, .documents = positions.documents};
  return o_proj_(attention_(q, k, v, rotates_ ? positions : unrotated, sinks_));
}

GatedMlpImpl::GatedMlpImpl(const ModelShape& shape, const TensorOptions& options,
                           Activation activation)
    : activation_(activation),
      gate_proj_(shape.dim, shape.ffn_dim, shape.mlp_bias, options),
      up_proj_(shape.dim, shape.ffn_dim, shape.mlp_bias, options),
      down_proj_(shape.ffn_dim, shape.dim, shape.mlp_bias, options) {
  register_module("gate_proj", gate_proj_);
  register_module("up_proj", up_proj_);
  register_module("down_proj", down_proj_);
}

Tensor GatedMlpImpl::forward(const Tensor& x) {
  using enum kernels::ResultLayout;
  // swiglu reads both where they lie, and keeps both. In float32 one product is no faster than two.
  const bool joins = activation_ == Activation::silu && x.element_size() == 2;
  const auto inside = nn::linears(x, {gate_proj_, up_proj_}, joins ? side_by_side : apart);
  switch (activation_) {
    case Activation::silu:
      return down_proj_(kernels::swiglu(inside[0], inside[1]));
    case Activation::gelu_tanh:
      return down_proj_(kernels::gelu_tanh(inside[0]) * inside[1]);
  }
  TORCH_INTERNAL_ASSERT(false);
}

namespace {

/// Each part behind a norm of its own.
class PreNormBlock : public DecoderBlockImpl {
 public:
  PreNormBlock(const ModelShape& shape, std::shared_ptr<AnyAttentionImpl> attention,
               const TensorOptions& options, FeedForwardPart feed_forward)
      : self_attn_(std::move(attention)),
        feed_forward_(feed_forward.module ? std::move(feed_forward.module)
                                          : std::make_shared<GatedMlpImpl>(shape, options)),
        input_layernorm_(shape.dim, shape.norm_eps, options),
        post_attention_layernorm_(shape.dim, shape.norm_eps, options) {
    register_module("self_attn", self_attn_);
    register_module(feed_forward.name, feed_forward_);
    register_module("input_layernorm", input_layernorm_);
    register_module("post_attention_layernorm", post_attention_layernorm_);
  }

  Tensor forward(const Tensor& x, const nn::Positions& positions) override {
    const auto [entered, normed] = input_layernorm_(x, Tensor());
    const auto [attended, normed_again] =
        post_attention_layernorm_(entered, self_attn_(normed, positions));
    return autograd::residual_sum(attended, feed_forward_(normed_again));
  }

 private:
  AnyAttention self_attn_;
  FeedForward feed_forward_;
  nn::RMSNorm input_layernorm_, post_attention_layernorm_;
};

}  // namespace

std::shared_ptr<DecoderBlockImpl> make_pre_norm_block(const ModelShape& shape,
                                                      const SelfAttentionOptions& attention,
                                                      const TensorOptions& options,
                                                      FeedForwardPart feed_forward) {
  return make_pre_norm_block(shape, std::make_shared<SelfAttentionImpl>(shape, attention, options),
                             options, std::move(feed_forward));
}

std::shared_ptr<DecoderBlockImpl> make_pre_norm_block(const ModelShape& shape,
                                                      std::shared_ptr<AnyAttentionImpl> attention,
                                                      const TensorOptions& options,
                                                      FeedForwardPart feed_forward) {
  return std::make_shared<PreNormBlock>(shape, std::move(attention), options,
                                        std::move(feed_forward));
}

kernels::RotaryTablesOptions rotary_options(const ModelShape& shape) {
  static const std::map<RopeScalingType, kernels::RopeScalingType> kTypes{
      {RopeScalingType::linear, kernels::RopeScalingType::linear},
      {RopeScalingType::dynamic, kernels::RopeScalingType::dynamic},
      {RopeScalingType::yarn, kernels::RopeScalingType::yarn},
      {RopeScalingType::llama3, kernels::RopeScalingType::llama3},
      {RopeScalingType::longrope, kernels::RopeScalingType::longrope}};
  kernels::RotaryTablesOptions options{.theta = shape.rope_theta};
  if (const auto& scaling = shape.rope_scaling) {
    options.scaling = {.type = kTypes.at(scaling->type),
                       .factor = scaling->factor,
                       .original_max_seq_len = scaling->original_max_seq_len,
                       .low_freq_factor = scaling->low_freq_factor,
                       .high_freq_factor = scaling->high_freq_factor,
                       .beta_fast = scaling->beta_fast,
                       .beta_slow = scaling->beta_slow,
                       .truncate = scaling->truncate,
                       .attention_factor = scaling->attention_factor,
                       .short_factors = scaling->short_factors,
                       .long_factors = scaling->long_factors};
  }
  return options;
}

bool RotaryTables::by_length() const {
  return options_.scaling && (options_.scaling->type == kernels::RopeScalingType::dynamic ||
                              options_.scaling->type == kernels::RopeScalingType::longrope);
}

bool RotaryTables::reach(int64_t length) const {
  if (!cos_.defined() || cos_.size(0) < length) return false;
  return !by_length() || cos_.size(0) == length ||
         cos_.size(0) <= options_.scaling->original_max_seq_len;
}

int64_t RotaryTables::rows_for(int64_t length) const {
  const auto doubled = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(length)));
  if (!by_length()) return doubled;
  return std::max(length, std::min(doubled, options_.scaling->original_max_seq_len));
}

nn::Positions RotaryTables::of_each_length(const RowLayout& rows, int64_t batch,
                                           const torch::Device& device) const {
  const int64_t original = options_.scaling->original_max_seq_len;
  const auto longest = kernels::longest_document(rows.documents, rows.seq_len);
  std::map<int64_t, std::tuple<torch::Tensor, torch::Tensor>> tables;  // by the length that counts
  auto cos = torch::zeros({batch, rows.seq_len, width_}), sin = torch::zeros_like(cos);
  for (const auto& document : kernels::documents_in(rows.documents, batch, rows.seq_len)) {
    const int64_t size = document.size();
    const int64_t length = size > original ? size : std::min(longest, original);
    const auto [entry, is_new] = tables.try_emplace(length);
    if (is_new) entry->second = kernels::rotary_tables(length, width_, options_);
    const auto put = [&](const torch::Tensor& to, const torch::Tensor& table) {
      to[document.row].narrow(0, document.begin, size).copy_(table.narrow(0, 0, size));
    };
    put(cos, std::get<0>(entry->second)), put(sin, std::get<1>(entry->second));
  }
  return {kernels::to_device(cos, device), kernels::to_device(sin, device), rows.documents};
}

nn::Positions RotaryTables::at(const RowLayout& rows, int64_t batch, const torch::Device& device) {
  const auto& documents = rows.documents;
  if (documents.defined() && by_length()) return of_each_length(rows, batch, device);
  const int64_t first = rows.first_position;
  const int64_t length = first + kernels::longest_document(documents, rows.seq_len);
  if (!reach(length) || cos_.device() != device) {
    std::tie(cos_, sin_) = kernels::rotary_tables(rows_for(length), width_, options_);
    cos_ = cos_.to(device), sin_ = sin_.to(device);
  }
  if (!documents.defined()) {
    return {cos_.narrow(0, first, rows.seq_len), sin_.narrow(0, first, rows.seq_len), documents};
  }
  const auto positions =
      kernels::to_device(kernels::document_positions(documents, batch, rows.seq_len), device);
  return {cos_.index({positions}), sin_.index({positions}), documents};
}

nn::TensorPlan gated_mlp_plan() {
  using enum nn::TensorStyle;
  return {{.pattern = "model.layers.*.mlp", .style = region, .enters = true},
          {.pattern = "model.layers.*.gate_proj", .style = column_wise},
          {.pattern = "model.layers.*.up_proj", .style = column_wise},
          {.pattern = "model.layers.*.down_proj", .style = row_wise}};
}

namespace {

/// How tensor parallelism divides blocks of SelfAttention and their norms.
nn::TensorPlan self_attention_plan(const ModelShape& shape, QkNorms norms) {
  using enum nn::TensorStyle;
  const auto heads = shape.num_heads, kv_heads = shape.num_kv_heads;
  nn::TensorPlan plan{
      {.pattern = "model.layers.*_layernorm", .style = per_position},
      {.pattern = "model.layers.*.self_attn", .style = region, .enters = true, .heads = heads},
      {.pattern = "model.layers.*.q_proj", .style = column_wise, .heads = heads},
      {.pattern = "model.layers.*.k_proj",
       .style = column_wise,
       .heads = kv_heads,
       .repeats_heads = true},
      {.pattern = "model.layers.*.v_proj",
       .style = column_wise,
       .heads = kv_heads,
       .repeats_heads = true},
      {.pattern = "model.layers.*.o_proj", .style = row_wise, .heads = heads}};
  if (norms == QkNorms::all_heads) {
    plan.push_back({.pattern = "model.layers.*.q_norm", .style = divided_norm, .heads = heads});
    plan.push_back({.pattern = "model.layers.*.k_norm",
                    .style = divided_norm,
                    .heads = kv_heads,
                    .repeats_heads = true});
  }
  if (norms == QkNorms::each_head) {
    plan.push_back({.pattern = "model.layers.*.self_attn.*_norm", .style = per_head});
  }
  return plan;
}

}  // namespace

Decoder::Decoder(const ModelShape& shape, DecoderParts parts, const TensorOptions& options)
    : LanguageModel(shape),
      tables_(std::move(parts.tables)),
      table_of_(std::move(parts.table_of)),
      feed_forward_(std::move(parts.feed_forward)),
      attention_(parts.attention.empty() ? self_attention_plan(shape, parts.norms)
                                         : std::move(parts.attention)),
      norm_offset_(parts.norm_offset),
      embedding_scale_(parts.embedding_scale),
      embed_tokens_(shape.vocab_size, shape.dim, options),
      norm_(shape.dim, shape.norm_eps, options, norm_offset_),
      lm_head_(nullptr) {
  auto model = register_module("model", std::make_shared<torch::nn::Module>());
  model->register_module("embed_tokens", embed_tokens_);
  auto list = model->register_module("layers", std::make_shared<torch::nn::Module>());
  for (int64_t i = 0; i < shape.num_layers; ++i) {
    layers_.emplace_back(parts.make_block(i));
    list->register_module(std::to_string(i), layers_.back());
  }
  model->register_module("norm", norm_);
  if (shape.tie_embeddings) {
    lm_head_ = nn::LanguageModelHead(embed_tokens_->weight);
  } else {
    lm_head_ = nn::LanguageModelHead(shape.dim, shape.vocab_size, options);
  }
  lm_head_->softcap = parts.logits_softcap;
  register_module("lm_head", lm_head_);
}

Tensor Decoder::embed(const Tensor& ids, const RowLayout& /*rows*/) {
  auto embedded = embed_tokens_(ids);
  if (embedding_scale_ == 1) return embedded;
  return embedded * torch::scalar_tensor(embedding_scale_, embedded.options());
}

Tensor Decoder::run_layers(Tensor hidden, int64_t begin, int64_t end, const RowLayout& rows) {
  std::vector<nn::Positions> positions;
  for (auto& table : tables_) positions.push_back(table.at(rows, hidden.size(0), hidden.device()));
  for (int64_t i = begin; i < end; ++i) {
    hidden = layers_[i](std::move(hidden), positions.at(table_of_(i)));
  }
  return hidden;
}

Tensor Decoder::head(const Tensor& hidden, const Tensor& targets, const kernels::TokenLoss& loss) {
  return lm_head_(norm_(hidden), targets, loss);
}

LanguageModel::Layout Decoder::layout() const {
  return {.embedding = {"model.embed_tokens"},
          .layers = numbered("model.layers.", shape().num_layers),
          .head = {"model.norm", "lm_head"}};
}

nn::TensorPlan Decoder::tensor_plan() const {
  using enum nn::TensorStyle;
  nn::TensorPlan plan{{.pattern = "model.embed_tokens", .style = embedding},
                      {.pattern = "model.norm", .style = per_position},
                      {.pattern = "lm_head", .style = head, .enters = true}};
  for (const auto* part : {&attention_, &feed_forward_}) {
    plan.insert(plan.end(), part->begin(), part->end());
  }
  return plan;
}

LanguageModel::Initial Decoder::initial(const std::string& parameter, int64_t dims,
                                        double std) const {
  if (parameter.ends_with(".sinks") || parameter.ends_with(".router.bias")) return {.value = std};
  if (parameter.ends_with(".bias")) return {.constant = true, .value = 0};
  return dims == 1 ? Initial{.constant = true, .value = 1 - norm_offset_} : Initial{.value = std};
}

}  // namespace tessera::models
