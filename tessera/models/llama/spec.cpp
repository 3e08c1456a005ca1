// Llama 2 and 3 (Touvron et al., 2023; Grattafiori et al., 2024), Mistral (Jiang et al., 2023),
// Qwen2 and Qwen3 (Yang et al., 2024 and 2025): one implementation, what tells them apart are
// fields of the shape.
#include "tessera/models/spec.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "tessera/models/decoder_spec.h"
#include "tessera/models/rope.h"

namespace tessera::models {
namespace llama {
namespace {

enum class Windows {
  none,
  everywhere,  ///< sliding_window, of every layer
  last_layers  ///< use_sliding_window, and which layers
};

/// What config.json means by model_type.
struct Type {
  HfType hf;
  DecoderHeads heads;
  bool has_attention_bias = false;  ///< looks at attention_bias
  bool has_mlp_bias = false;
  bool always_qkv_bias = false;
  bool qk_norm = false;
  Windows windows = Windows::none;
};

const std::vector<Type>& types() {
  static const std::vector<Type> list{
      {.hf = {"llama", "LlamaForCausalLM", /*layers_had_rotary_tables=*/true},
       .has_attention_bias = true,
       .has_mlp_bias = true},
      {.hf = {"mistral", "MistralForCausalLM"},
       .heads = {.absent_kv_heads = 8},
       .windows = Windows::everywhere},
      {.hf = {"qwen2", "Qwen2ForCausalLM"},
       .heads = {.absent_kv_heads = 32},
       .always_qkv_bias = true,
       .windows = Windows::last_layers},
      {.hf = {"qwen3", "Qwen3ForCausalLM"},
       .heads = {.absent_kv_heads = 32, .absent_width = 128},
       .has_attention_bias = true,
       .qk_norm = true,
       .windows = Windows::last_layers}};
  return list;
}

const Type& type_named(const std::string& name) {
  return *std::ranges::find(types(), name, [](const Type& type) { return type.hf.name; });
}

/// The number of layers before the first that slides; all of them if none does.
int64_t full_layers(const JsonKeys& keys, int64_t num_layers) {
  if (!keys.has("layer_types")) return std::min(keys.size("max_window_layers", 28, 0), num_layers);
  const auto sliding = read_sliding_layers(keys, num_layers);
  const auto first = std::ranges::find(sliding, true);
  keys.refuse_unless(std::ranges::all_of(first, sliding.end(), [](bool slides) { return slides; }),
                     "layer_types", "layers of full_attention before those of sliding_attention");
  return first - sliding.begin();
}

void read_window(const JsonKeys& keys, Windows windows, ModelShape& shape) {
  constexpr int64_t kAbsent = 4096;
  switch (windows) {
    case Windows::none:
      return;
    case Windows::everywhere:
      if (!keys.is_null("sliding_window")) {
        shape.sliding_window = keys.size("sliding_window", kAbsent);
      }
      return;
    case Windows::last_layers: {
      if (!keys.flag("use_sliding_window", false) || keys.is_null("sliding_window")) return;
      const int64_t full = full_layers(keys, shape.num_layers);
      if (full == shape.num_layers) return;
      shape.sliding_window = keys.size("sliding_window", kAbsent);
      shape.num_full_layers = full;
    }
  }
}

ModelShape read(const JsonKeys& keys, const HfType& hf_type) {
  const auto& type = type_named(hf_type.name);
  auto shape = read_decoder(keys, ModelFamily::llama);
  shape.qk_norm = type.qk_norm;
  read_decoder_heads(keys, type.heads, shape);
  keys.refuse_unless(keys.text("hidden_act", "silu") == "silu", "hidden_act", "silu");
  shape.out_bias = type.has_attention_bias && keys.flag("attention_bias", false);
  shape.qkv_bias = shape.out_bias || type.always_qkv_bias;
  shape.mlp_bias = type.has_mlp_bias && keys.flag("mlp_bias", false);
  read_window(keys, type.windows, shape);
  read_rotary(keys, shape);
  return shape;
}

/// The first of llama, mistral, qwen2 and qwen3 that has all the shape's parts (a Mistral without a
/// window is a llama).
std::string type_of(const ModelShape& s) {
  if (s.qk_norm) return "qwen3";
  if (s.qkv_bias != s.out_bias) return "qwen2";
  return s.sliding_window != 0 ? "mistral" : "llama";
}

void write(const ModelShape& s, nlohmann::ordered_json& config) {
  const auto& type = type_named(type_of(s));
  write_decoder(s, "silu", config);
  if (type.has_attention_bias) config["attention_bias"] = s.out_bias;
  if (type.has_mlp_bias) config["mlp_bias"] = s.mlp_bias;
  if (type.windows == Windows::none) return;
  if (type.windows == Windows::last_layers) config["use_sliding_window"] = s.sliding_window != 0;
  config["sliding_window"] = nullptr;
  if (s.sliding_window != 0) config["sliding_window"] = s.sliding_window;
  if (type.windows == Windows::last_layers) {
    config["max_window_layers"] = s.sliding_window == 0 ? s.num_layers : s.num_full_layers;
  }
}

ParameterSpecs parameters(const ModelShape& shape) {
  return decoder_parameters(shape, {"input_layernorm", "post_attention_layernorm"});
}

// Shapes as published with the weights (config.json of meta-llama/*); micro, tiny and small are
// ours, for tests and benchmarks.
std::vector<std::pair<std::string, ModelShape>> presets() {
  return {{"micro",
           {.vocab_size = 256,
            .dim = 64,
            .num_layers = 2,
            .num_heads = 4,
            .num_kv_heads = 2,
            .head_dim = 16,
            .ffn_dim = 176,
            .max_seq_len = 64}},
          {"tiny",
           {.vocab_size = 2048,
            .dim = 256,
            .num_layers = 4,
            .num_heads = 8,
            .num_kv_heads = 4,
            .head_dim = 32,
            .ffn_dim = 688,
            .max_seq_len = 256}},
          {"small",
           {.vocab_size = 32000,
            .dim = 512,
            .num_layers = 8,
            .num_heads = 8,
            .num_kv_heads = 8,
            .head_dim = 64,
            .ffn_dim = 1376,
            .max_seq_len = 512}},
          {"llama-3.2-1b",
           {.vocab_size = 128256,
            .dim = 2048,
            .num_layers = 16,
            .num_heads = 32,
            .num_kv_heads = 8,
            .head_dim = 64,
            .ffn_dim = 8192,
            .max_seq_len = 131072,
            .rope_theta = 500000,
            .rope_scaling = RopeScaling{.factor = 32},
            .tie_embeddings = true}},
          {"llama-3-8b",
           {.vocab_size = 128256,
            .dim = 4096,
            .num_layers = 32,
            .num_heads = 32,
            .num_kv_heads = 8,
            .head_dim = 128,
            .ffn_dim = 14336,
            .max_seq_len = 8192,
            .rope_theta = 500000}},
          {"llama-3-70b",
           {.vocab_size = 128256,
            .dim = 8192,
            .num_layers = 80,
            .num_heads = 64,
            .num_kv_heads = 8,
            .head_dim = 128,
            .ffn_dim = 28672,
            .max_seq_len = 8192,
            .rope_theta = 500000}},
          {"llama-3.1-405b",
           {.vocab_size = 128256,
            .dim = 16384,
            .num_layers = 126,
            .num_heads = 128,
            .num_kv_heads = 8,
            .head_dim = 128,
            .ffn_dim = 53248,
            .max_seq_len = 131072,
            .rope_theta = 500000,
            .rope_scaling = RopeScaling{.factor = 8}}}};
}

}  // namespace
}  // namespace llama

const FamilySpec& llama_spec() {
  static const FamilySpec spec = [] {
    FamilySpec result{.name = "llama",
                      .read = llama::read,
                      .type_of = llama::type_of,
                      .write = llama::write,
                      .config_names = decoder_config_names(),
                      .problem = no_problem,
                      .parameters = llama::parameters,
                      .activations = decoder_activations,
                      .window = window_of_sliding_layers,
                      .rotary_width = whole_head_rotary,
                      .adapter_targets = {"q_proj", "v_proj"},
                      .presets = llama::presets()};
    for (const auto& type : llama::types()) result.types.push_back(type.hf);
    return result;
  }();
  return spec;
}

}  // namespace tessera::models
