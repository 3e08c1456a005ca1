#include "tessera/models/llama.h"

#include <map>
#include <tuple>

#include "tessera/kernels/activation.h"
#include "tessera/kernels/attention.h"
#include "tessera/kernels/rotary.h"

namespace tessera::models {

using config::ModelShape;
using torch::Tensor;
using torch::TensorOptions;

namespace {

kernels::RotaryTablesOptions rotary_options(const ModelShape& shape) {
  static const std::map<config::RopeScalingType, kernels::RopeScalingType> kTypes{
      {config::RopeScalingType::linear, kernels::RopeScalingType::linear},
      {config::RopeScalingType::dynamic, kernels::RopeScalingType::dynamic},
      {config::RopeScalingType::yarn, kernels::RopeScalingType::yarn},
      {config::RopeScalingType::llama3, kernels::RopeScalingType::llama3}};
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
                       .attention_factor = scaling->attention_factor};
  }
  return options;
}

}  // namespace

LlamaAttentionImpl::LlamaAttentionImpl(const ModelShape& shape, int64_t index,
                                       const TensorOptions& options)
    : head_dim_(shape.head_dim),
      q_proj_(shape.dim, shape.num_heads * head_dim_, shape.qkv_bias, options),
      k_proj_(shape.dim, shape.num_kv_heads * head_dim_, shape.qkv_bias, options),
      v_proj_(shape.dim, shape.num_kv_heads * head_dim_, shape.qkv_bias, options),
      o_proj_(shape.num_heads * head_dim_, shape.dim, shape.out_bias, options) {
  if (shape.sliding_window > 0 && index >= shape.num_full_layers) window_ = shape.sliding_window;
  register_module("q_proj", q_proj_);
  register_module("k_proj", k_proj_);
  register_module("v_proj", v_proj_);
  register_module("o_proj", o_proj_);
  if (!shape.qk_norm) return;
  q_norm_ = register_module("q_norm", nn::RMSNorm(head_dim_, shape.norm_eps, options));
  k_norm_ = register_module("k_norm", nn::RMSNorm(head_dim_, shape.norm_eps, options));
}

Tensor LlamaAttentionImpl::forward(const Tensor& x, const Tensor& cos, const Tensor& sin) {
  const auto batch = x.size(0), seq_len = x.size(1);
  // The number of heads is that of the weights here, which may be a part.
  auto q = q_proj_(x).view({batch, seq_len, -1, head_dim_});
  auto k = k_proj_(x).view({batch, seq_len, -1, head_dim_});
  const auto v = v_proj_(x).view({batch, seq_len, -1, head_dim_});
  if (q_norm_) q = q_norm_(q), k = k_norm_(k);
  const auto attended = kernels::attention(kernels::rotary(q, cos, sin),
                                           kernels::rotary(k, cos, sin), v, {.window = window_});
  return o_proj_(attended.view({batch, seq_len, -1}));
}

LlamaMlpImpl::LlamaMlpImpl(const ModelShape& shape, const TensorOptions& options)
    : gate_proj_(shape.dim, shape.ffn_dim, shape.mlp_bias, options),
      up_proj_(shape.dim, shape.ffn_dim, shape.mlp_bias, options),
      down_proj_(shape.ffn_dim, shape.dim, shape.mlp_bias, options) {
  register_module("gate_proj", gate_proj_);
  register_module("up_proj", up_proj_);
  register_module("down_proj", down_proj_);
}

Tensor LlamaMlpImpl::forward(const Tensor& x) {
  return down_proj_(kernels::swiglu(gate_proj_(x), up_proj_(x)));
}

LlamaBlockImpl::LlamaBlockImpl(const ModelShape& shape, int64_t index, const TensorOptions& options)
    : self_attn_(shape, index, options),
      mlp_(shape, options),
      input_layernorm_(shape.dim, shape.norm_eps, options),
      post_attention_layernorm_(shape.dim, shape.norm_eps, options) {
  register_module("self_attn", self_attn_);
  register_module("mlp", mlp_);
  register_module("input_layernorm", input_layernorm_);
  register_module("post_attention_layernorm", post_attention_layernorm_);
}

Tensor LlamaBlockImpl::forward(const Tensor& x, const Tensor& cos, const Tensor& sin) {
  const auto attended = x + self_attn_(input_layernorm_(x), cos, sin);
  return attended + mlp_(post_attention_layernorm_(attended));
}

Llama::Llama(const ModelShape& shape, const TensorOptions& options)
    : LanguageModel(shape),
      embed_tokens_(shape.vocab_size, shape.dim, options),
      norm_(shape.dim, shape.norm_eps, options),
      lm_head_(nullptr) {
  auto model = register_module("model", std::make_shared<torch::nn::Module>());
  model->register_module("embed_tokens", embed_tokens_);
  auto list = model->register_module("layers", std::make_shared<torch::nn::Module>());
  for (int64_t i = 0; i < shape.num_layers; ++i) {
    layers_.emplace_back(shape, i, options);
    list->register_module(std::to_string(i), layers_.back());
  }
  model->register_module("norm", norm_);
  if (shape.tie_embeddings) {
    lm_head_ = nn::LanguageModelHead(embed_tokens_->weight);
  } else {
    lm_head_ = nn::LanguageModelHead(shape.dim, shape.vocab_size, options);
  }
  register_module("lm_head", lm_head_);
}

bool Llama::tables_reach(int64_t seq_len) const {
  if (!cos_.defined() || cos_.size(0) < seq_len) return false;
  const auto& scaling = shape().rope_scaling;
  const bool dynamic = scaling && scaling->type == config::RopeScalingType::dynamic;
  return !dynamic || cos_.size(0) == seq_len || cos_.size(0) <= scaling->original_max_seq_len;
}

void Llama::extend_tables(int64_t seq_len, const torch::Device& device) {
  if (tables_reach(seq_len) && cos_.device() == device) return;
  std::tie(cos_, sin_) = kernels::rotary_tables(seq_len, shape().head_dim, rotary_options(shape()));
  cos_ = cos_.to(device), sin_ = sin_.to(device);
}

Tensor Llama::embed(const Tensor& ids) { return embed_tokens_(ids); }

Tensor Llama::run_layers(Tensor hidden, int64_t begin, int64_t end, int64_t seq_len) {
  extend_tables(seq_len, hidden.device());
  const auto cos = cos_.narrow(0, 0, seq_len), sin = sin_.narrow(0, 0, seq_len);
  for (int64_t i = begin; i < end; ++i) hidden = layers_[i](std::move(hidden), cos, sin);
  return hidden;
}

Tensor Llama::head(const Tensor& hidden, const Tensor& targets, double scale) {
  return lm_head_(norm_(hidden), targets, scale);
}

LanguageModel::Layout Llama::layout() const {
  return {.embedding = {"model.embed_tokens"},
          .layers = numbered("model.layers.", shape().num_layers),
          .head = {"model.norm", "lm_head"}};
}

nn::TensorPlan Llama::tensor_plan() const {
  using enum nn::TensorStyle;
  const auto heads = shape().num_heads, kv_heads = shape().num_kv_heads;
  nn::TensorPlan plan{{.pattern = "model.embed_tokens", .style = embedding},
                      {.pattern = "model.layers.*_layernorm", .style = per_position},
                      {.pattern = "model.layers.*.self_attn", .style = region, .enters = true},
                      {.pattern = "model.layers.*.q_proj", .style = column_wise, .heads = heads},
                      {.pattern = "model.layers.*.k_proj",
                       .style = column_wise,
                       .heads = kv_heads,
                       .repeats_heads = true},
                      {.pattern = "model.layers.*.v_proj",
                       .style = column_wise,
                       .heads = kv_heads,
                       .repeats_heads = true},
                      {.pattern = "model.layers.*.o_proj", .style = row_wise, .heads = heads},
                      {.pattern = "model.layers.*.mlp", .style = region, .enters = true},
                      {.pattern = "model.layers.*.gate_proj", .style = column_wise},
                      {.pattern = "model.layers.*.up_proj", .style = column_wise},
                      {.pattern = "model.layers.*.down_proj", .style = row_wise},
                      {.pattern = "model.norm", .style = per_position},
                      {.pattern = "lm_head", .style = head, .enters = true}};
  if (shape().qk_norm) {
    plan.push_back({.pattern = "model.layers.*.self_attn.*_norm", .style = per_head});
  }
  return plan;
}

LanguageModel::Initial Llama::initial(const std::string& parameter, int64_t dims,
                                      double std) const {
  if (parameter.ends_with(".bias")) return {.constant = true, .value = 0};
  return dims == 1 ? Initial{.constant = true, .value = 1} : Initial{.value = std};
}

}  // namespace tessera::models
