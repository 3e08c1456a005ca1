// Phi-3 and Phi-4 (Abdin et al., 2024): a Llama whose files have queries, keys and values in one
// tensor, gate and up in another; a part of each head is rotated; LongRoPE (Ding et al., 2024).
#include "tessera/models/spec.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "tessera/models/decoder_spec.h"
#include "tessera/models/phi3/shape.h"

namespace tessera::models {
namespace phi3 {
namespace {

int64_t rotary_width(const ModelShape& shape) {
  return static_cast<int64_t>(static_cast<double>(shape.head_dim) *
                              shape.own.as<Facts>().partial_rotary_factor);
}

std::vector<double> read_factors(const JsonKeys& rope, const std::string& key) {
  const auto& list = rope.at(key);
  const auto positive = [](const nlohmann::json& item) {
    return item.is_number() && item.get<double>() > 0;
  };
  if (!list.is_array() || !std::all_of(list.begin(), list.end(), positive)) {
    rope.wrong(key, "a list of numbers > 0");
  }
  return list.get<std::vector<double>>();
}

/// The factor of cosines and sines as transformers infers it (Ding et al., section 4.2).
RopeScaling read_longrope(const JsonKeys& keys, const JsonKeys& rope, int64_t max_seq_len) {
  RopeScaling scaling{.type = RopeScalingType::longrope};
  scaling.short_factors = read_factors(rope, "short_factor");
  scaling.long_factors = read_factors(rope, "long_factor");
  scaling.original_max_seq_len = keys.size("original_max_position_embeddings",
                                           rope.size("original_max_position_embeddings", 4096));
  const auto original = static_cast<double>(scaling.original_max_seq_len);
  scaling.factor = rope.positive("factor", static_cast<double>(max_seq_len) / original);
  const double inferred =
      scaling.factor <= 1 ? 1.0 : std::sqrt(1 + std::log(scaling.factor) / std::log(original));
  scaling.attention_factor = rope.positive("attention_factor", inferred);
  return scaling;
}

/// transformers 5 keeps all in rope_parameters, 4 in keys of their own; "su" and "yarn" are what
/// longrope was called.
void read_positions(const JsonKeys& keys, ModelShape& shape) {
  Facts facts{.partial_rotary_factor = keys.positive("partial_rotary_factor", 1.0)};
  shape.rope_theta = keys.positive("rope_theta", 10000.0);
  const std::string group = keys.has("rope_scaling") ? "rope_scaling" : "rope_parameters";
  if (keys.has(group)) {
    const auto rope = keys.child(group);
    shape.rope_theta = rope.positive("rope_theta", shape.rope_theta);
    facts.partial_rotary_factor =
        rope.positive("partial_rotary_factor", facts.partial_rotary_factor);
    const std::string type_key = rope.has("rope_type") || !rope.has("type") ? "rope_type" : "type";
    const auto type = rope.text(type_key, "default");
    const bool is_long = type == "longrope" || type == "su" || type == "yarn";
    rope.refuse_unless(is_long || type == "default", type_key, "default or longrope");
    if (is_long) shape.rope_scaling = read_longrope(keys, rope, shape.max_seq_len);
  }
  shape.own = facts;
}

ModelShape read(const JsonKeys& keys, const HfType& /*type*/) {
  auto shape = read_decoder(keys, ModelFamily::phi3, /*absent_eps=*/1e-5);
  read_decoder_heads(keys, {}, shape);
  keys.refuse_unless(keys.text("hidden_act", "silu") == "silu", "hidden_act", "silu");
  shape.sliding_window = keys.has("sliding_window") ? keys.size("sliding_window") : 0;
  read_positions(keys, shape);
  return shape;
}

std::string type_of(const ModelShape& /*shape*/) { return "phi3"; }

void write(const ModelShape& shape, nlohmann::ordered_json& config) {
  write_decoder(shape, "silu", config);
  config["partial_rotary_factor"] = shape.own.as<Facts>().partial_rotary_factor;
  config["resid_pdrop"] = config["embd_pdrop"] = 0.0;
  config["pad_token_id"] = nullptr;
  config["sliding_window"] = nullptr;
  if (shape.sliding_window != 0) config["sliding_window"] = shape.sliding_window;
  config["original_max_position_embeddings"] =
      shape.rope_scaling ? shape.rope_scaling->original_max_seq_len : shape.max_seq_len;
}

std::optional<ShapeProblem> problem(const ModelShape& shape) {
  const int64_t width = rotary_width(shape);
  if (width < 2 || width % 2 != 0 || width > shape.head_dim) {
    return ShapeProblem{"head_dim",
                        fmt::format("expected an even number of rotated columns in each "
                                    "head, got {} of {}",
                                    width, shape.head_dim)};
  }
  if (!shape.rope_scaling) return std::nullopt;
  const auto& scaling = *shape.rope_scaling;
  for (const auto* factors : {&scaling.short_factors, &scaling.long_factors}) {
    if (std::ssize(*factors) == width / 2) continue;
    return ShapeProblem{"rope_scaling", fmt::format("expected {} short and long factors, one for "
                                                    "each two rotated columns, got {}",
                                                    width / 2, factors->size())};
  }
  return std::nullopt;
}

ParameterSpecs parameters(const ModelShape& shape) {
  return decoder_parameters(shape, {"input_layernorm", "post_attention_layernorm"});
}

}  // namespace
}  // namespace phi3

const FamilySpec& phi3_spec() {
  static const FamilySpec spec{
      .name = "phi3",
      .types = {{"phi3", "Phi3ForCausalLM"}},
      .read = phi3::read,
      .type_of = phi3::type_of,
      .write = phi3::write,
      .config_names = decoder_config_names(),
      .problem = phi3::problem,
      .parameters = phi3::parameters,
      .activations = decoder_activations,
      .window = window_of_sliding_layers,
      .rotary_width = phi3::rotary_width,
      .fused = {{"self_attn.qkv_proj.weight",
                 {"self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"}},
                {"mlp.gate_up_proj.weight", {"mlp.gate_proj.weight", "mlp.up_proj.weight"}}}};
  return spec;
}

}  // namespace tessera::models
