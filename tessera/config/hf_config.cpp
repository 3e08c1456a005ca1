// Hugging Face's config.json: names as transformers writes them (versions 4 and 5).
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/config/model_shape.h"
#include "tessera/config/values.h"

namespace tessera::config {
namespace {

using Json = nlohmann::json;

std::string shortened(const Json& value) {
  return quoted(value.dump(-1, ' ', false, Json::error_handler_t::replace));
}

/// One JSON object of the file. Every error starts with file and key; null counts as absent, as in
/// transformers.
class Keys {
 public:
  Keys(std::string where, const Json& object) : where_(std::move(where)), object_(object) {}

  bool has(const std::string& key) const {
    return object_.contains(key) && !object_.at(key).is_null();
  }
  const Json& at(const std::string& key) const {
    if (!has(key)) user_error("{}: {}: expected a value, got none", where_, key);
    return object_.at(key);
  }
  Keys child(const std::string& key) const {
    if (!at(key).is_object()) wrong(key, "an object");
    return Keys(where_ + ": " + key, at(key));
  }

  int64_t size(const std::string& key, std::optional<int64_t> absent = {}) const {
    if (absent && !has(key)) return *absent;
    const auto& value = at(key);
    const bool whole = value.is_number_integer() &&
                       !(value.is_number_unsigned() && value.get<uint64_t>() > uint64_t{INT64_MAX});
    if (!whole || value.get<int64_t>() < 1) wrong(key, "a whole number >= 1");
    return value.get<int64_t>();
  }
  double positive(const std::string& key, std::optional<double> absent = {}) const {
    if (absent && !has(key)) return *absent;
    if (!at(key).is_number() || !(at(key).get<double>() > 0)) wrong(key, "a number > 0");
    return at(key).get<double>();
  }
  bool flag(const std::string& key, bool absent) const {
    if (!has(key)) return absent;
    if (!at(key).is_boolean()) wrong(key, "true or false");
    return at(key).get<bool>();
  }
  std::string text(const std::string& key, std::optional<std::string> absent = {}) const {
    if (absent && !has(key)) return *absent;
    if (!at(key).is_string()) wrong(key, "a text");
    return at(key).get<std::string>();
  }

  /// A setting that changes the model in a way that is not built here.
  void refuse_unless(bool supported, const std::string& key, const std::string& expected) const {
    if (!supported) {
      user_error("{}: {}: {} is not supported; expected {}", where_, key, shortened(at(key)),
                 expected);
    }
  }

 private:
  [[noreturn]] void wrong(const std::string& key, const std::string& expected) const {
    user_error("{}: {}: expected {}, got {}", where_, key, expected, shortened(at(key)));
  }

  std::string where_;
  const Json& object_;
};

/// transformers 5 keeps theta and scaling in rope_parameters, 4 in rope_theta and rope_scaling.
void read_rotary(const Keys& keys, ModelShape& shape) {
  shape.rope_theta = keys.positive("rope_theta", 10000.0);
  const std::string group = keys.has("rope_parameters") ? "rope_parameters" : "rope_scaling";
  if (!keys.has(group)) return;
  const auto rope = keys.child(group);
  shape.rope_theta = rope.positive("rope_theta", shape.rope_theta);
  const std::string type_key = rope.has("rope_type") || !rope.has("type") ? "rope_type" : "type";
  // Without a type rope_parameters is plain; in a rope_scaling the type is what it is there for.
  const auto type =
      group == "rope_parameters" ? rope.text(type_key, "default") : rope.text(type_key);
  rope.refuse_unless(type == "default" || type == "llama3", type_key, "default or llama3");
  rope.refuse_unless(rope.positive("partial_rotary_factor", 1.0) == 1, "partial_rotary_factor",
                     "1");
  if (type == "default") return;
  shape.rope_scaling =
      RopeScaling{.factor = rope.positive("factor"),
                  .low_freq_factor = rope.positive("low_freq_factor"),
                  .high_freq_factor = rope.positive("high_freq_factor"),
                  .original_max_seq_len = rope.size("original_max_position_embeddings")};
  if (shape.rope_scaling->high_freq_factor <= shape.rope_scaling->low_freq_factor) {
    rope.refuse_unless(false, "high_freq_factor", "more than low_freq_factor");
  }
}

ModelShape read_llama(const Keys& keys) {
  ModelShape shape{.family = ModelFamily::llama,
                   .vocab_size = keys.size("vocab_size"),
                   .dim = keys.size("hidden_size"),
                   .num_layers = keys.size("num_hidden_layers"),
                   .num_heads = keys.size("num_attention_heads"),
                   .ffn_dim = keys.size("intermediate_size"),
                   .max_seq_len = keys.size("max_position_embeddings"),
                   .norm_eps = keys.positive("rms_norm_eps", 1e-6),
                   .tie_embeddings = keys.flag("tie_word_embeddings", false)};
  shape.num_kv_heads = keys.size("num_key_value_heads", shape.num_heads);
  keys.refuse_unless(keys.has("head_dim") || shape.dim % shape.num_heads == 0,
                     "num_attention_heads", fmt::format("a divisor of hidden_size {}", shape.dim));
  shape.head_dim = keys.size("head_dim", shape.dim / shape.num_heads);
  keys.refuse_unless(keys.text("hidden_act", "silu") == "silu", "hidden_act", "silu");
  keys.refuse_unless(!keys.flag("attention_bias", false), "attention_bias", "false");
  keys.refuse_unless(!keys.flag("mlp_bias", false), "mlp_bias", "false");
  read_rotary(keys, shape);
  return shape;
}

ModelShape read_gpt2(const Keys& keys) {
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

ModelShape read_model_shape(const std::filesystem::path& config_json) {
  const auto file = config_json.string();
  Json json;
  try {
    json = Json::parse(read_file(config_json));
  } catch (const Json::parse_error& error) {
    user_error("{}: expected JSON; it stops being JSON at byte {}", file, error.byte);
  }
  if (!json.is_object())
    user_error("{}: expected a JSON object with model_type, got {}", file, shortened(json));
  const Keys keys(file, json);
  const auto type = keys.text("model_type");
  keys.refuse_unless(type == "llama" || type == "gpt2", "model_type", "llama or gpt2");
  const auto shape = type == "llama" ? read_llama(keys) : read_gpt2(keys);
  if (const auto problem = shape_problem(shape)) {
    user_error("{}: {}: {}", file, published_name(shape.family, problem->field), problem->message);
  }
  return shape;
}

}  // namespace tessera::config
