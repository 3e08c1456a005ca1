// Gemma 2 (Gemma Team, 2024) and the text model of Gemma 3 (2025): norms before and behind attention
// and feed-forward, layers with a window between layers without. Gemma 2 caps scores and logits;
// Gemma 3 has norms of heads, and angles of their own for layers with a window.
#include "tessera/models/spec.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "tessera/models/decoder_spec.h"
#include "tessera/models/gemma/shape.h"
#include "tessera/models/rope.h"

namespace tessera::models {
namespace gemma {
namespace {

constexpr int64_t kAbsentWindow = 4096, kAbsentHeadDim = 256, kAbsentKeyHeads = 4;

/// What config.json means by model_type.
struct Type {
  HfType hf;
  bool is_third = false;
  int64_t absent_pattern = 2;  ///< without layer_types: each such layer is without a window
};

const std::vector<Type>& types() {
  static const std::vector<Type> list{
      {.hf = {"gemma3_text", "Gemma3ForCausalLM"}, .is_third = true, .absent_pattern = 6},
      {.hf = {"gemma2", "Gemma2ForCausalLM"}}};
  return list;
}

const Type& type_named(const std::string& name) {
  return *std::ranges::find(types(), name, [](const Type& type) { return type.hf.name; });
}

/// layer_types, or a window in all but each sliding_window_pattern-th layer.
std::vector<bool> read_slides(const JsonKeys& keys, const Type& type, int64_t num_layers) {
  if (keys.has("layer_types")) return read_sliding_layers(keys, num_layers);
  const int64_t pattern = type.is_third ? keys.size("sliding_window_pattern", type.absent_pattern)
                                        : type.absent_pattern;
  std::vector<bool> slides;
  for (int64_t i = 1; i <= std::min<int64_t>(num_layers, 1 << 14); ++i) {
    slides.push_back(i % pattern != 0);
  }
  return slides;
}

/// transformers 5 has rope_parameters for each type of layer; 4 rope_theta, rope_scaling and
/// rope_local_base_freq.
void read_positions(const JsonKeys& keys, ModelShape& shape, Facts& facts) {
  constexpr double kGlobal = 1'000'000, kLocal = 10'000;
  facts.local_theta = keys.positive("rope_local_base_freq", kLocal);
  if (!keys.has("rope_parameters") || keys.has("rope_scaling")) {
    return read_rotary(keys, shape, kGlobal);
  }
  const auto both = keys.child("rope_parameters");
  if (both.has("sliding_attention")) {
    const auto local = both.child("sliding_attention");
    facts.local_theta = local.positive("rope_theta", facts.local_theta);
    local.refuse_unless(local.text("rope_type", "default") == "default", "rope_type", "default");
  }
  shape.rope_theta = keys.positive("rope_theta", kGlobal);
  if (!both.has("full_attention")) return;
  const nlohmann::json global{{"rope_parameters", both.at("full_attention")}};
  read_rotary(JsonKeys(both.child("full_attention").where(), global), shape, shape.rope_theta);
}

/// A softcap; an absent one is what transformers makes of that, null none.
double read_cap(const JsonKeys& keys, const std::string& key, double absent) {
  return keys.is_null(key) ? 0 : keys.positive(key, absent);
}

ModelShape read(const JsonKeys& keys, const HfType& hf_type) {
  const auto& type = type_named(hf_type.name);
  auto shape = read_decoder(keys, ModelFamily::gemma, /*absent_eps=*/1e-6,
                            /*tied_unless_said=*/true);
  read_decoder_heads(keys, {.absent_kv_heads = kAbsentKeyHeads, .absent_width = kAbsentHeadDim},
                     shape);
  constexpr const char* kGelu = "gelu_pytorch_tanh";
  keys.refuse_unless(keys.text("hidden_activation", kGelu) == kGelu, "hidden_activation", kGelu);
  keys.refuse_unless(!keys.flag("use_bidirectional_attention", false),
                     "use_bidirectional_attention", "false");
  shape.qkv_bias = shape.out_bias = keys.flag("attention_bias", false);
  shape.qk_norm = type.is_third;
  shape.sliding_window = keys.size("sliding_window", kAbsentWindow);
  shape.sliding_layers = read_slides(keys, type, shape.num_layers);
  Facts facts{.query_scalar = keys.positive("query_pre_attn_scalar", 256)};
  if (type.is_third) {
    for (const auto* cap : {"attn_logit_softcapping", "final_logit_softcapping"}) {
      keys.refuse_unless(!keys.has(cap), cap, "null");
    }
    read_positions(keys, shape, facts);
  } else {
    facts.attention_softcap = read_cap(keys, "attn_logit_softcapping", 50);
    facts.logits_softcap = read_cap(keys, "final_logit_softcapping", 30);
    read_rotary(keys, shape);
  }
  shape.own = facts;
  return shape;
}

std::string type_of(const ModelShape& shape) { return shape.qk_norm ? "gemma3_text" : "gemma2"; }

void write(const ModelShape& shape, nlohmann::ordered_json& config) {
  const auto& facts = shape.own.as<Facts>();
  write_decoder(shape, "gelu_pytorch_tanh", config);
  config["hidden_activation"] = "gelu_pytorch_tanh";
  config["attention_bias"] = shape.out_bias;
  config["query_pre_attn_scalar"] = facts.query_scalar;
  if (facts.local_theta != 0) config["rope_local_base_freq"] = facts.local_theta;
  config["attn_logit_softcapping"] = config["final_logit_softcapping"] = nullptr;
  if (facts.attention_softcap != 0) config["attn_logit_softcapping"] = facts.attention_softcap;
  if (facts.logits_softcap != 0) config["final_logit_softcapping"] = facts.logits_softcap;
}

ParameterSpecs parameters(const ModelShape& shape) {
  return decoder_parameters(shape, {"input_layernorm", "post_attention_layernorm",
                                    "pre_feedforward_layernorm", "post_feedforward_layernorm"});
}

/// Two norms more, of which one is of the last product's result, and GELU's result besides its product with the other half.
ActivationNumbers activations(const ModelShape& s, int64_t position_ranks) {
  auto numbers = decoder_activations(s, position_ranks);
  const double ranks = static_cast<double>(position_ranks);
  const double own = static_cast<double>(s.dim) / ranks, f = static_cast<double>(s.ffn_dim);
  numbers.kept.values += 2 * own + f, numbers.kept.floats += 2 / ranks;
  numbers.selective.values += own;
  numbers.recomputed.values += own + f, numbers.recomputed.floats += 2 / ranks;
  numbers.sums_in_norms = false;
  if (s.own.as<Facts>().logits_softcap != 0) numbers.of_logits = 1;  // its slope
  return numbers;
}

int64_t rotary_width(const ModelShape& shape) {
  return (shape.own.as<Facts>().local_theta != 0 ? 2 : 1) * shape.head_dim;
}

}  // namespace
}  // namespace gemma

const FamilySpec& gemma_spec() {
  static const FamilySpec spec{.name = "gemma",
                               .types = {gemma::types()[0].hf, gemma::types()[1].hf},
                               .read = gemma::read,
                               .type_of = gemma::type_of,
                               .write = gemma::write,
                               .config_names = decoder_config_names(),
                               .problem = no_problem,
                               .parameters = gemma::parameters,
                               .activations = gemma::activations,
                               .window = window_of_sliding_layers,
                               .rotary_width = gemma::rotary_width,
                               .tied_unless_said = true,
                               .norms_results = true,
                               .adapter_targets = {"q_proj", "v_proj"}};
  return spec;
}

}  // namespace tessera::models
