// SmolLM3 (Bakouch et al., 2025): a Llama some of whose layers are without positions (Yang et al.,
// Rope to Nope and Back Again, 2025).
#include "tessera/models/spec.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "tessera/models/decoder_spec.h"
#include "tessera/models/rope.h"
#include "tessera/models/smollm3/shape.h"

namespace tessera::models {
namespace smollm3 {
namespace {

/// no_rope_layers, or every layer but each no_rope_layer_interval-th.
Facts read_facts(const JsonKeys& keys, int64_t num_layers) {
  Facts facts;
  if (!keys.has("no_rope_layers")) {
    const int64_t interval = keys.size("no_rope_layer_interval", 4);
    for (int64_t i = 1; i <= std::min<int64_t>(num_layers, 1 << 14); ++i) {
      facts.rotates.push_back(i % interval != 0);
    }
    return facts;
  }
  const auto& list = keys.at("no_rope_layers");
  const auto is_flag = [](const nlohmann::json& item) { return item == 0 || item == 1; };
  if (!list.is_array() || static_cast<int64_t>(list.size()) < num_layers ||
      !std::all_of(list.begin(), list.end(), is_flag)) {
    keys.wrong("no_rope_layers", fmt::format("0 or 1 for each of {} layers", num_layers));
  }
  for (int64_t i = 0; i < num_layers; ++i) {
    facts.rotates.push_back(list[static_cast<size_t>(i)] == 1);
  }
  return facts;
}

ModelShape read(const JsonKeys& keys, const HfType& /*type*/) {
  auto shape = read_decoder(keys, ModelFamily::smollm3, /*absent_eps=*/1e-6,
                            /*tied_unless_said=*/true);
  read_decoder_heads(keys, {.absent_kv_heads = 4}, shape);
  keys.refuse_unless(keys.text("hidden_act", "silu") == "silu", "hidden_act", "silu");
  keys.refuse_unless(!keys.flag("use_sliding_window", false), "use_sliding_window", "false");
  shape.qkv_bias = shape.out_bias = keys.flag("attention_bias", false);
  shape.mlp_bias = keys.flag("mlp_bias", false);
  read_rotary(keys, shape, /*absent_theta=*/2'000'000);
  shape.own = read_facts(keys, shape.num_layers);
  return shape;
}

std::string type_of(const ModelShape& /*shape*/) { return "smollm3"; }

void write(const ModelShape& shape, nlohmann::ordered_json& config) {
  write_decoder(shape, "silu", config);
  config["attention_bias"] = shape.out_bias;
  config["mlp_bias"] = shape.mlp_bias;
  config["use_sliding_window"] = false;
  auto list = nlohmann::ordered_json::array();
  const auto& rotates = shape.own.as<Facts>().rotates;
  for (int64_t i = 0; i < shape.num_layers; ++i) list.push_back(rotates.at(i) ? 1 : 0);
  config["no_rope_layers"] = list;
}

std::optional<ShapeProblem> problem(const ModelShape& shape) {
  const auto known = std::ssize(shape.own.as<Facts>().rotates);
  if (shape.num_layers <= known) return std::nullopt;
  return ShapeProblem{"num_layers",
                      fmt::format("expected at most {}, of which no_rope_layers says whether they "
                                  "have positions, got {}",
                                  known, shape.num_layers)};
}

ParameterSpecs parameters(const ModelShape& shape) {
  return decoder_parameters(shape, {"input_layernorm", "post_attention_layernorm"});
}

}  // namespace
}  // namespace smollm3

const FamilySpec& smollm3_spec() {
  static const FamilySpec spec{.name = "smollm3",
                               .types = {{"smollm3", "SmolLM3ForCausalLM"}},
                               .read = smollm3::read,
                               .type_of = smollm3::type_of,
                               .write = smollm3::write,
                               .config_names = decoder_config_names(),
                               .problem = smollm3::problem,
                               .parameters = smollm3::parameters,
                               .activations = decoder_activations,
                               .window = window_of_sliding_layers,
                               .rotary_width = whole_head_rotary,
                               .tied_unless_said = true};
  return spec;
}

}  // namespace tessera::models
