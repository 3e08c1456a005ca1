// Mixtral (Jiang et al., 2024), OLMoE (Muennighoff et al., 2024), Qwen2-MoE (Yang et al., 2024) and Qwen3-MoE
// (Yang et al., 2025): blocks as Llama's whose feed-forwards are mixtures of experts. DeepSpeed-MoE's residual
// experts (Rajbhandari et al., 2022), of which no model is published, in such blocks as well.
#include "tessera/models/spec.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "tessera/models/decoder_spec.h"
#include "tessera/models/mixture_spec.h"
#include "tessera/models/moe/shape.h"
#include "tessera/models/rope.h"

namespace tessera::models {
namespace moe {

const MixtureNames& names_of(const ModelShape& shape) {
  static const MixtureNames mixtral{
      .mixture = "block_sparse_moe", .gate = "w1", .up = "w3", .down = "w2"};
  static const MixtureNames others{.shared = "shared_expert", .shared_gate = "shared_expert_gate"};
  static const MixtureNames residual{.shared = "residual_expert", .coefficient = "coefficient"};
  switch (kind_of(shape)) {
    case Kind::mixtral:
      return mixtral;
    case Kind::residual:
      return residual;
    case Kind::olmoe:
    case Kind::qwen2:
    case Kind::qwen3:
      return others;
  }
  __builtin_unreachable();
}

namespace {

/// What config.json says where a key is missing.
struct Absent {
  std::string type, architecture;
  Kind kind;
  double eps;
  std::optional<int64_t> kv_heads;
};

const std::vector<Absent>& kinds() {
  static const std::vector<Absent> list{
      {"mixtral", "MixtralForCausalLM", Kind::mixtral, 1e-5, 8},
      {"olmoe", "OlmoeForCausalLM", Kind::olmoe, 1e-5, std::nullopt},
      {"qwen2_moe", "Qwen2MoeForCausalLM", Kind::qwen2, 1e-6, 16},
      {"qwen3_moe", "Qwen3MoeForCausalLM", Kind::qwen3, 1e-6, 4},
      {"pr_moe", "PrMoeForCausalLM", Kind::residual, 1e-5, std::nullopt}};
  return list;
}

/// transformers 5 writes num_local_experts, 4 num_experts.
ExpertsShape read_experts(const JsonKeys& keys) {
  const char* num = keys.has("num_local_experts") ? "num_local_experts" : "num_experts";
  return {.num = keys.size(num),
          .top_k = keys.size("num_experts_per_tok"),
          .normalise = keys.flag("norm_topk_prob", false)};
}

void read_mixtral(const JsonKeys& keys, ModelShape& shape) {
  double noise = 0;
  if (keys.has("router_jitter_noise")) {
    const auto& value = keys.at("router_jitter_noise");
    if (value.is_number()) noise = value.get<double>();
    if (!value.is_number() || noise < 0 || noise >= 1) {
      keys.wrong("router_jitter_noise", "a number of at least 0 and below 1");
    }
  }
  shape.experts = {.num = keys.size("num_local_experts"),
                   .top_k = keys.size("num_experts_per_tok"),
                   .jitter_noise = noise};
  if (keys.has("sliding_window")) shape.sliding_window = keys.size("sliding_window");
}

void read_olmoe(const JsonKeys& keys, ModelShape& shape) {
  keys.refuse_unless(!keys.has("clip_qkv"), "clip_qkv", "null");
  shape.experts = read_experts(keys);
  shape.qkv_bias = shape.out_bias = keys.flag("attention_bias", false);
}

void read_residual(const JsonKeys& keys, ModelShape& shape) {
  shape.experts = read_experts(keys);
  shape.experts.shared_ffn_dim = shape.ffn_dim;
  shape.qkv_bias = shape.out_bias = keys.flag("attention_bias", false);
}

/// Experts in every layer, whose width is not that of the dense feed-forward that no layer has.
void read_qwen(const JsonKeys& keys, ModelShape& shape) {
  keys.refuse_unless(keys.size("decoder_sparse_step", 1) == 1, "decoder_sparse_step", "1");
  const bool some_dense = keys.has("mlp_only_layers") && !keys.at("mlp_only_layers").empty();
  keys.refuse_unless(!some_dense, "mlp_only_layers", "[], experts in every layer");
  shape.experts = read_experts(keys);
  shape.experts.dense_ffn_dim = shape.ffn_dim;
  shape.ffn_dim = keys.size("moe_intermediate_size");
}

void read_qwen2(const JsonKeys& keys, ModelShape& shape) {
  read_qwen(keys, shape);
  shape.experts.shared_ffn_dim = keys.size("shared_expert_intermediate_size");
  shape.qkv_bias = keys.flag("qkv_bias", true);
  keys.refuse_unless(!keys.flag("use_sliding_window", false), "use_sliding_window", "false");
}

void read_qwen3(const JsonKeys& keys, ModelShape& shape) {
  read_qwen(keys, shape);
  shape.qk_norm = true;
  shape.qkv_bias = shape.out_bias = keys.flag("attention_bias", false);
  if (keys.flag("use_sliding_window", false) && keys.has("sliding_window")) {
    shape.sliding_window = keys.size("sliding_window");
  }
}

ModelShape read(const JsonKeys& keys, const HfType& type) {
  const auto& absent = *std::ranges::find(kinds(), type.name, &Absent::type);
  auto shape = read_decoder(keys, ModelFamily::moe, absent.eps);
  shape.own = Facts{.kind = absent.kind};
  read_decoder_heads(keys, {.absent_kv_heads = absent.kv_heads, .absent_width = {}}, shape);
  keys.refuse_unless(keys.text("hidden_act", "silu") == "silu", "hidden_act", "silu");
  switch (absent.kind) {
    case Kind::mixtral:
      read_mixtral(keys, shape);
      break;
    case Kind::olmoe:
      read_olmoe(keys, shape);
      break;
    case Kind::qwen2:
      read_qwen2(keys, shape);
      break;
    case Kind::qwen3:
      read_qwen3(keys, shape);
      break;
    case Kind::residual:
      read_residual(keys, shape);
      break;
  }
  read_rotary(keys, shape);
  return shape;
}

std::string type_of(const ModelShape& shape) {
  return std::ranges::find(kinds(), kind_of(shape), &Absent::kind)->type;
}

void write(const ModelShape& s, nlohmann::ordered_json& config) {
  const auto kind = kind_of(s);
  write_decoder(s, "silu", config);
  config.update({{"num_experts_per_tok", s.experts.top_k},
                 {"output_router_logits", false},
                 {"router_aux_loss_coef", 0.001}});
  if (kind == Kind::mixtral) {
    config.update({{"num_local_experts", s.experts.num},
                   {"router_jitter_noise", s.experts.jitter_noise},
                   {"sliding_window", nullptr}});
    if (s.sliding_window != 0) config["sliding_window"] = s.sliding_window;
    return;
  }
  config.update({{"num_experts", s.experts.num}, {"norm_topk_prob", s.experts.normalise}});
  if (kind == Kind::residual) {
    config["attention_bias"] = s.out_bias;
    return;
  }
  if (kind == Kind::olmoe) {
    config.update({{"attention_bias", s.out_bias}, {"clip_qkv", nullptr}});
    return;
  }
  config.update({{"intermediate_size", s.experts.dense_ffn_dim},
                 {"moe_intermediate_size", s.ffn_dim},
                 {"decoder_sparse_step", 1},
                 {"mlp_only_layers", nlohmann::json::array()},
                 {"use_sliding_window", s.sliding_window != 0},
                 {"sliding_window", nullptr}});
  if (s.sliding_window != 0) config["sliding_window"] = s.sliding_window;
  if (kind == Kind::qwen2) {
    config.update(
        {{"shared_expert_intermediate_size", s.experts.shared_ffn_dim}, {"qkv_bias", s.qkv_bias}});
  } else {
    config["attention_bias"] = s.out_bias;
  }
}

std::optional<ShapeProblem> problem(const ModelShape& s) {
  if (s.experts.num > 0) return std::nullopt;
  return ShapeProblem{"num_experts", "expected at least 1, got 0"};
}

ParameterSpecs parameters(const ModelShape& s) {
  auto result = decoder_parameters(s, {"input_layernorm", "post_attention_layernorm"});
  if (kind_of(s) == Kind::olmoe) add_norms_of_all_heads(s, result);
  add_mixture(s, names_of(s), result);
  return result;
}

ActivationNumbers activations(const ModelShape& s, int64_t position_ranks) {
  auto numbers = decoder_activations(s, position_ranks);
  if (kind_of(s) == Kind::olmoe) add_norms_of_all_heads(s, numbers);
  add_mixture(s, names_of(s), numbers);
  return numbers;
}

std::optional<ModelShape> upcycled(const ModelShape& dense, int64_t experts, int64_t top_k) {
  const bool biased = dense.qkv_bias || dense.out_bias;
  if (dense.family != ModelFamily::llama || dense.mlp_bias || dense.num_full_layers > 0) return {};
  if (biased && !dense.qk_norm) return {};
  auto shape = dense;
  shape.family = ModelFamily::moe;
  shape.experts = {.num = experts, .top_k = top_k};
  shape.own = Facts{.kind = dense.qk_norm ? Kind::qwen3 : Kind::mixtral};
  if (dense.qk_norm) shape.experts.dense_ffn_dim = dense.ffn_dim;
  return shape;
}

std::vector<HfType> types() {
  std::vector<HfType> list;
  for (const auto& kind : kinds()) list.push_back({kind.type, kind.architecture});
  return list;
}

}  // namespace
}  // namespace moe

const FamilySpec& moe_spec() {
  static const FamilySpec spec{.name = "moe",
                               .types = moe::types(),
                               .read = moe::read,
                               .type_of = moe::type_of,
                               .write = moe::write,
                               .config_names = decoder_config_names(),
                               .problem = moe::problem,
                               .parameters = moe::parameters,
                               .activations = moe::activations,
                               .window = window_of_sliding_layers,
                               .rotary_width = whole_head_rotary,
                               .mixture = moe::names_of,
                               .upcycled = moe::upcycled,
                               .adapter_targets = {"q_proj", "v_proj"}};
  return spec;
}

}  // namespace tessera::models
