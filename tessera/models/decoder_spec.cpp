#include "tessera/models/decoder_spec.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "tessera/models/rope.h"

namespace tessera::models {

const std::map<std::string, std::string>& decoder_config_names() {
  static const std::map<std::string, std::string> names = {
      {"dim", "hidden_size"},
      {"num_layers", "num_hidden_layers"},
      {"num_heads", "num_attention_heads"},
      {"num_kv_heads", "num_key_value_heads"},
      {"ffn_dim", "intermediate_size"},
      {"max_seq_len", "max_position_embeddings"}};
  return names;
}

ModelShape read_decoder(const JsonKeys& keys, ModelFamily family, double absent_eps,
                        bool tied_unless_said) {
  return {.family = family,
          .vocab_size = keys.size("vocab_size"),
          .dim = keys.size("hidden_size"),
          .num_layers = keys.size("num_hidden_layers"),
          .num_heads = keys.size("num_attention_heads"),
          .ffn_dim = keys.size("intermediate_size"),
          .max_seq_len = keys.size("max_position_embeddings"),
          .norm_eps = keys.positive("rms_norm_eps", absent_eps),
          .tie_embeddings = keys.flag("tie_word_embeddings", tied_unless_said)};
}

void read_decoder_heads(const JsonKeys& keys, const DecoderHeads& heads, ModelShape& shape) {
  // null means one for each query head.
  const int64_t absent = keys.is_null("num_key_value_heads")
                             ? shape.num_heads
                             : heads.absent_kv_heads.value_or(shape.num_heads);
  shape.num_kv_heads = keys.size("num_key_value_heads", absent);
  const bool own_width = keys.has("head_dim") || heads.absent_width;
  keys.refuse_unless(own_width || shape.dim % shape.num_heads == 0, "num_attention_heads",
                     fmt::format("a divisor of hidden_size {}", shape.dim));
  shape.head_dim = keys.size("head_dim", heads.absent_width.value_or(shape.dim / shape.num_heads));
}

std::vector<bool> read_sliding_layers(const JsonKeys& keys, int64_t num_layers) {
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
  std::vector<bool> sliding;
  for (const auto& type : types) sliding.push_back(slides(type));
  return sliding;
}

void write_decoder(const ModelShape& s, const char* activation, nlohmann::ordered_json& config) {
  config.update({{"vocab_size", s.vocab_size},
                 {"hidden_size", s.dim},
                 {"intermediate_size", s.ffn_dim},
                 {"num_hidden_layers", s.num_layers},
                 {"num_attention_heads", s.num_heads},
                 {"num_key_value_heads", s.num_kv_heads},
                 {"head_dim", s.head_dim},
                 {"hidden_act", activation},
                 {"max_position_embeddings", s.max_seq_len},
                 {"rms_norm_eps", s.norm_eps},
                 {"rope_theta", s.rope_theta},
                 {"rope_scaling", rope_scaling_json(s.rope_scaling)},
                 {"attention_dropout", 0.0},
                 {"tie_word_embeddings", s.tie_embeddings},
                 {"bos_token_id", nullptr},
                 {"eos_token_id", nullptr}});
  if (s.sliding_layers.empty()) return;
  config["sliding_window"] = s.sliding_window;
  auto types = nlohmann::ordered_json::array();
  for (size_t i = 0; i < static_cast<size_t>(s.num_layers); ++i) {
    types.push_back(s.sliding_layers.at(i) ? "sliding_attention" : "full_attention");
  }
  config["layer_types"] = types;
}

ParameterSpecs decoder_parameters(const ModelShape& s,
                                  const std::vector<std::string>& block_norms) {
  using enum Division;
  ParameterSpecs result{.embedding = {{"model.embed_tokens.weight", {s.vocab_size, s.dim}}},
                        .head = {{"model.norm.weight", {s.dim}, per_position}},
                        .block_prefix = "model.layers."};
  if (!s.tie_embeddings) result.head.push_back({"lm_head.weight", {s.vocab_size, s.dim}});
  const auto add = [&](const std::string& name, int64_t in, int64_t out, bool bias, Division weight,
                       Division of_bias) {
    result.block.push_back({name + ".weight", {out, in}, weight});
    if (bias) result.block.push_back({name + ".bias", {out}, of_bias});
  };
  const int64_t q = s.num_heads * s.head_dim, kv = s.num_kv_heads * s.head_dim;
  add("self_attn.q_proj", s.dim, q, s.qkv_bias, parts, parts);
  add("self_attn.k_proj", s.dim, kv, s.qkv_bias, key_heads, key_heads);
  add("self_attn.v_proj", s.dim, kv, s.qkv_bias, key_heads, key_heads);
  add("self_attn.o_proj", q, s.dim, s.out_bias, parts, per_position);
  if (s.qk_norm) {
    result.block.push_back({"self_attn.q_norm.weight", {s.head_dim}, per_head});
    result.block.push_back({"self_attn.k_norm.weight", {s.head_dim}, per_head});
  }
  add("mlp.gate_proj", s.dim, s.ffn_dim, s.mlp_bias, parts, parts);
  add("mlp.up_proj", s.dim, s.ffn_dim, s.mlp_bias, parts, parts);
  add("mlp.down_proj", s.ffn_dim, s.dim, s.mlp_bias, parts, per_position);
  for (const auto& norm : block_norms) {
    result.block.push_back({norm + ".weight", {s.dim}, per_position});
  }
  return result;
}

void add_norms_of_all_heads(const ModelShape& s, ParameterSpecs& parameters) {
  parameters.block.push_back({"self_attn.q_norm.weight", {s.num_heads * s.head_dim}});
  parameters.block.push_back(
      {"self_attn.k_norm.weight", {s.num_kv_heads * s.head_dim}, Division::key_heads});
}

/// They keep queries, keys and two statistics.
void add_norms_of_all_heads(const ModelShape& s, ActivationNumbers& numbers) {
  const auto normed = static_cast<double>((s.num_heads + s.num_kv_heads) * s.head_dim);
  for (auto* kept : {&numbers.kept, &numbers.recomputed}) {
    kept->values += normed;
    kept->floats += 2;
  }
  numbers.summed = 2;
}

ActivationNumbers decoder_activations(const ModelShape& s, int64_t position_ranks) {
  const auto real = [](int64_t number) { return static_cast<double>(number); };
  const double ranks = real(position_ranks), own = real(s.dim) / ranks;
  const double leaving = 2 * real(s.dim), f = real(s.ffn_dim), h = real(s.num_heads);
  const double q = real(s.num_heads * s.head_dim), k = real(s.num_kv_heads * s.head_dim);
  // Norms of heads keep what they norm, and a number for each head.
  const Numbers head_norms = s.qk_norm ? Numbers{q + k, h + real(s.num_kv_heads)} : Numbers{};
  return {.kept = {2 * own + 2 * q + 2 * k + 3 * f + head_norms.values,
                   h + 2 / ranks + head_norms.floats},
          .to_attention = {2 * own + 2 * q + 2 * k, h},
          .selective = {2 * own + 2 * q + 2 * k + 2 * f, h},
          .recomputed = {own + q + k + f + head_norms.values, 2 / ranks + head_norms.floats},
          .products = 2,
          .sums_in_norms = true,
          .deferred = leaving + 2 * q + 2 * k + 3 * f};
}

std::optional<int64_t> window_of_sliding_layers(const ModelShape& shape, int64_t layer) {
  if (shape.sliding_window == 0) return std::nullopt;
  const auto& slides = shape.sliding_layers;
  // Sizes are also asked of shapes that nobody checked yet.
  const bool has = slides.empty()
                       ? layer >= shape.num_full_layers
                       : layer < std::ssize(slides) && slides[static_cast<size_t>(layer)];
  return has ? std::optional(shape.sliding_window) : std::nullopt;
}

int64_t whole_head_rotary(const ModelShape& shape) { return shape.head_dim; }

std::optional<ShapeProblem> no_problem(const ModelShape& /*shape*/) { return std::nullopt; }

}  // namespace tessera::models
