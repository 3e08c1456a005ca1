// OLMo 2 (OLMo Team, 2 OLMo 2 Furious, 2024): norms stand behind attention and feed-forward, and
// all queries together, as all keys, have one norm.
#include "tessera/models/spec.h"

#include <nlohmann/json.hpp>

#include "tessera/models/decoder_spec.h"
#include "tessera/models/rope.h"

namespace tessera::models {
namespace olmo2 {
namespace {

ModelShape read(const JsonKeys& keys, const HfType& /*type*/) {
  auto shape = read_decoder(keys, ModelFamily::olmo2, /*absent_eps=*/1e-5);
  read_decoder_heads(keys, {}, shape);
  keys.refuse_unless(keys.text("hidden_act", "silu") == "silu", "hidden_act", "silu");
  shape.qkv_bias = shape.out_bias = keys.flag("attention_bias", false);
  read_rotary(keys, shape);
  return shape;
}

std::string type_of(const ModelShape& /*shape*/) { return "olmo2"; }

void write(const ModelShape& shape, nlohmann::ordered_json& config) {
  write_decoder(shape, "silu", config);
  config["attention_bias"] = shape.out_bias;
}

ParameterSpecs parameters(const ModelShape& s) {
  auto result = decoder_parameters(s, {"post_attention_layernorm", "post_feedforward_layernorm"});
  add_norms_of_all_heads(s, result);
  return result;
}

/// The last product's result is normed, so selective checkpointing keeps it.
ActivationNumbers activations(const ModelShape& s, int64_t position_ranks) {
  auto numbers = decoder_activations(s, position_ranks);
  add_norms_of_all_heads(s, numbers);
  numbers.sums_in_norms = false;
  numbers.selective.values += static_cast<double>(s.dim) / static_cast<double>(position_ranks);
  return numbers;
}

}  // namespace
}  // namespace olmo2

const FamilySpec& olmo2_spec() {
  static const FamilySpec spec{.name = "olmo2",
                               .types = {{"olmo2", "Olmo2ForCausalLM"}},
                               .read = olmo2::read,
                               .type_of = olmo2::type_of,
                               .write = olmo2::write,
                               .config_names = decoder_config_names(),
                               .problem = no_problem,
                               .parameters = olmo2::parameters,
                               .activations = olmo2::activations,
                               .window = window_of_sliding_layers,
                               .rotary_width = whole_head_rotary,
                               .norms_results = true};
  return spec;
}

}  // namespace tessera::models
