// Hugging Face's config.json: names as transformers writes them (versions 4 and 5), defaults as its
// version 5 has them.
#include "tessera/config/hf_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/config/json_keys.h"
#include "tessera/config/model_shape.h"

namespace tessera::config {
namespace {

/// Yarn's factor of cosines and sines (Peng et al., 2023, section 3.4), as transformers infers it.
double yarn_attention_factor(const JsonKeys& rope, double factor) {
  const auto grown = [factor](double scale) {
    return factor <= 1 ? 1.0 : 0.1 * scale * std::log(factor) + 1.0;
  };
  const bool both = rope.has("mscale") && rope.has("mscale_all_dim");
  const double inferred =
      both ? grown(rope.positive("mscale")) / grown(rope.positive("mscale_all_dim")) : grown(1);
  return rope.positive("attention_factor", inferred);
}

RopeScaling read_scaling(const JsonKeys& keys, const JsonKeys& rope, RopeScalingType type,
                         int64_t max_seq_len) {
  RopeScaling scaling{.type = type};
  if (type == RopeScalingType::llama3 || type == RopeScalingType::yarn) {
    // Outside of the group it comes first, as in transformers.
    scaling.original_max_seq_len =
        keys.size("original_max_position_embeddings",
                  rope.size("original_max_position_embeddings", max_seq_len));
  }
  switch (type) {
    case RopeScalingType::linear:
      scaling.factor = rope.positive("factor");
      break;
    case RopeScalingType::dynamic:
      scaling.factor = rope.positive("factor");
      scaling.original_max_seq_len = max_seq_len;
      break;
    case RopeScalingType::yarn:
      scaling.factor =
          rope.positive("factor", static_cast<double>(max_seq_len) /
                                      static_cast<double>(scaling.original_max_seq_len));
      scaling.beta_fast = rope.positive("beta_fast", scaling.beta_fast);
      scaling.beta_slow = rope.positive("beta_slow", scaling.beta_slow);
      scaling.truncate = rope.flag("truncate", true);
      scaling.attention_factor = yarn_attention_factor(rope, scaling.factor);
      break;
    case RopeScalingType::llama3:
      scaling.factor = rope.positive("factor");
      scaling.low_freq_factor = rope.positive("low_freq_factor");
      scaling.high_freq_factor = rope.positive("high_freq_factor");
      if (scaling.high_freq_factor <= scaling.low_freq_factor)
        rope.refuse_unless(false, "high_freq_factor", "more than low_freq_factor");
      break;
  }
  return scaling;
}

/// transformers 5 keeps theta and scaling in rope_parameters, 4 in rope_theta and rope_scaling; the
/// latter counts if both are there.
void read_rotary(const JsonKeys& keys, ModelShape& shape) {
  static const std::map<std::string, RopeScalingType> kTypes = {
      {"linear", RopeScalingType::linear},
      {"dynamic", RopeScalingType::dynamic},
      {"yarn", RopeScalingType::yarn},
      {"llama3", RopeScalingType::llama3}};
  shape.rope_theta = keys.positive("rope_theta", 10000.0);
  const std::string group = keys.has("rope_scaling") ? "rope_scaling" : "rope_parameters";
  if (!keys.has(group)) return;
  const auto rope = keys.child(group);
  shape.rope_theta = rope.positive("rope_theta", shape.rope_theta);
  const std::string type_key = rope.has("rope_type") || !rope.has("type") ? "rope_type" : "type";
  // Without a type rope_parameters is plain; in a rope_scaling the type is what it is there for.
  const auto type =
      group == "rope_parameters" ? rope.text(type_key, "default") : rope.text(type_key);
  const auto found = kTypes.find(type);
  rope.refuse_unless(type == "default" || found != kTypes.end(), type_key,
                     "default, linear, dynamic, yarn or llama3");
  rope.refuse_unless(rope.positive("partial_rotary_factor", 1.0) == 1, "partial_rotary_factor",
                     "1");
  if (type == "default") return;
  shape.rope_scaling = read_scaling(keys, rope, found->second, shape.max_seq_len);
}

/// The number of layers before the first that slides; all of them if none does.
int64_t full_layers(const JsonKeys& keys, int64_t num_layers) {
  if (!keys.has("layer_types")) return std::min(keys.size("max_window_layers", 28, 0), num_layers);
  const auto& types = keys.at("layer_types");
  const auto slides = [](const nlohmann::json& type) { return type == "sliding_attention"; };
  const auto known = [&](const nlohmann::json& type) {
    return slides(type) || type == "full_attention";
  };
  if (!types.is_array() || static_cast<int64_t>(types.size()) != num_layers ||
      !std::all_of(types.begin(), types.end(), known)) {
    keys.wrong(
        "layer_types",
        fmt::format("full_attention or sliding_attention for each of {} layers", num_layers));
  }
  const auto first = std::find_if(types.begin(), types.end(), slides);
  keys.refuse_unless(std::all_of(first, types.end(), slides), "layer_types",
                     "layers of full_attention before those of sliding_attention");
  return first - types.begin();
}

void read_window(const JsonKeys& keys, const std::string& type, ModelShape& shape) {
  constexpr int64_t kAbsent = 4096;
  if (type == "mistral") {
    if (!keys.is_null("sliding_window"))
      shape.sliding_window = keys.size("sliding_window", kAbsent);
  } else if (type == "qwen2" || type == "qwen3") {
    if (!keys.flag("use_sliding_window", false) || keys.is_null("sliding_window")) return;
    const int64_t full = full_layers(keys, shape.num_layers);
    if (full == shape.num_layers) return;
    shape.sliding_window = keys.size("sliding_window", kAbsent);
    shape.num_full_layers = full;
  }
}

void read_heads(const JsonKeys& keys, const std::string& type, ModelShape& shape) {
  // What an absent number of key heads means differs; null means one for each query head.
  const int64_t absent = keys.is_null("num_key_value_heads") || type == "llama" ? shape.num_heads
                         : type == "mistral"                                    ? 8
                                                                                : 32;
  shape.num_kv_heads = keys.size("num_key_value_heads", absent);
  const bool own_width = keys.has("head_dim") || type == "qwen3";
  keys.refuse_unless(own_width || shape.dim % shape.num_heads == 0, "num_attention_heads",
                     fmt::format("a divisor of hidden_size {}", shape.dim));
  shape.head_dim = keys.size("head_dim", type == "qwen3" ? 128 : shape.dim / shape.num_heads);
}

/// Llama, Mistral, Qwen2 and Qwen3.
ModelShape read_llama(const JsonKeys& keys, const std::string& type) {
  ModelShape shape{.family = ModelFamily::llama,
                   .vocab_size = keys.size("vocab_size"),
                   .dim = keys.size("hidden_size"),
                   .num_layers = keys.size("num_hidden_layers"),
                   .num_heads = keys.size("num_attention_heads"),
                   .ffn_dim = keys.size("intermediate_size"),
                   .max_seq_len = keys.size("max_position_embeddings"),
                   .qk_norm = type == "qwen3",
                   .norm_eps = keys.positive("rms_norm_eps", 1e-6),
                   .tie_embeddings = keys.flag("tie_word_embeddings", false)};
  read_heads(keys, type, shape);
  keys.refuse_unless(keys.text("hidden_act", "silu") == "silu", "hidden_act", "silu");
  const bool has_key = type == "llama" || type == "qwen3";  // the others do not look at it
  shape.out_bias = has_key && keys.flag("attention_bias", false);
  shape.qkv_bias = shape.out_bias || type == "qwen2";
  shape.mlp_bias = type == "llama" && keys.flag("mlp_bias", false);
  read_window(keys, type, shape);
  read_rotary(keys, shape);
  return shape;
}

ModelShape read_gpt2(const JsonKeys& keys) {
  ModelShape shape{.family = ModelFamily::gpt2,
                   .vocab_size = keys.size("vocab_size"),
                   .dim = keys.size("n_embd"),
                   .num_layers = keys.size("n_layer"),
                   .num_heads = keys.size("n_head"),
                   .max_seq_len = keys.size("n_positions"),
                   .norm_eps = keys.positive("layer_norm_epsilon", 1e-5),
                   .tie_embeddings = keys.flag("tie_word_embeddings", true)};
  keys.refuse_unless(shape.dim % shape.num_heads == 0, "n_head",
                     fmt::format("a divisor of n_embd {}", shape.dim));
  shape.num_kv_heads = shape.num_heads;
  shape.head_dim = shape.dim / shape.num_heads;
  // An absurd width is refused later, by shape_problem; it must not overflow before.
  shape.ffn_dim = keys.size("n_inner", 4 * std::min(shape.dim, int64_t{1} << 40));
  const auto activation = keys.text("activation_function", "gelu_new");
  keys.refuse_unless(activation == "gelu_new" || activation == "gelu_pytorch_tanh",
                     "activation_function", "gelu_new (the tanh form)");
  keys.refuse_unless(keys.flag("scale_attn_weights", true), "scale_attn_weights", "true");
  keys.refuse_unless(!keys.flag("scale_attn_by_inverse_layer_idx", false),
                     "scale_attn_by_inverse_layer_idx", "false");
  keys.refuse_unless(!keys.flag("add_cross_attention", false), "add_cross_attention", "false");
  return shape;
}

/// What config.json calls a field of ModelShape.
std::string published_name(ModelFamily family, const std::string& field) {
  static const std::map<std::string, std::string> llama = {
      {"dim", "hidden_size"},
      {"num_layers", "num_hidden_layers"},
      {"num_heads", "num_attention_heads"},
      {"num_kv_heads", "num_key_value_heads"},
      {"ffn_dim", "intermediate_size"},
      {"max_seq_len", "max_position_embeddings"}};
  static const std::map<std::string, std::string> gpt2 = {
      {"dim", "n_embd"},          {"num_layers", "n_layer"}, {"num_heads", "n_head"},
      {"num_kv_heads", "n_head"}, {"ffn_dim", "n_inner"},    {"max_seq_len", "n_positions"}};
  const auto& names = family == ModelFamily::llama ? llama : gpt2;
  const auto found = names.find(field);
  return found == names.end() ? field : found->second;
}

}  // namespace

ModelShape read_model_shape(const std::filesystem::path& config_json,
                            const std::string& expected_type) {
  return model_shape_of(read_json_object(config_json, "model_type"), config_json.string(),
                        expected_type);
}

ModelShape model_shape_of(const nlohmann::json& config, const std::string& where,
                          const std::string& expected_type) {
  const JsonKeys keys(where, config);
  const auto type = keys.text("model_type");
  const bool known =
      type == "llama" || type == "mistral" || type == "qwen2" || type == "qwen3" || type == "gpt2";
  keys.refuse_unless(known, "model_type", "llama, mistral, qwen2, qwen3 or gpt2");
  if (expected_type != "auto" && type != expected_type) {
    user_error(
        "{}: model_type: expected {}, which model.type asks for, got {}; set model.type to auto",
        where, expected_type, type);
  }
  const auto shape = type == "gpt2" ? read_gpt2(keys) : read_llama(keys, type);
  if (const auto problem = shape_problem(shape)) {
    user_error("{}: {}: {}", where, published_name(shape.family, problem->field), problem->message);
  }
  return shape;
}

}  // namespace tessera::config
