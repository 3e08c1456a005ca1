#include "tessera/models/rope.h"

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

namespace tessera::models {
namespace {

/// Yarn's factor of cosines and sines (Peng et al., 2023, section 3.4), as transformers infers it.
double yarn_attention_factor(const JsonKeys& rope, double factor) {
  const auto grown = [factor](double scale) {
    return factor <= 1 ? 1.0 : 0.1 * scale * std::log(factor) + 1.0;
  };
  const auto is_given = [&](const char* key) { return rope.has(key) && rope.at(key) != 0; };
  const bool both = is_given("mscale") && is_given("mscale_all_dim");
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
    case RopeScalingType::longrope:  // kTypes has it not
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

}  // namespace

// transformers 5 keeps theta and scaling in rope_parameters, 4 in rope_theta and rope_scaling; the
// latter counts if both are there.
void read_rotary(const JsonKeys& keys, ModelShape& shape, double absent_theta) {
  static const std::map<std::string, RopeScalingType> kTypes = {
      {"linear", RopeScalingType::linear},
      {"dynamic", RopeScalingType::dynamic},
      {"yarn", RopeScalingType::yarn},
      {"llama3", RopeScalingType::llama3}};
  shape.rope_theta = keys.positive("rope_theta", absent_theta);
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

nlohmann::ordered_json rope_scaling_json(const std::optional<RopeScaling>& scaling) {
  if (!scaling) return nullptr;
  const auto& s = *scaling;
  nlohmann::ordered_json json{{"factor", s.factor}};
  switch (s.type) {
    case RopeScalingType::linear:
      json["rope_type"] = "linear";
      break;
    case RopeScalingType::dynamic:
      json["rope_type"] = "dynamic";
      break;
    case RopeScalingType::yarn:
      json["rope_type"] = "yarn";
      json["original_max_position_embeddings"] = s.original_max_seq_len;
      json["attention_factor"] = s.attention_factor;
      json["beta_fast"] = s.beta_fast;
      json["beta_slow"] = s.beta_slow;
      json["truncate"] = s.truncate;
      break;
    case RopeScalingType::longrope:
      json["rope_type"] = "longrope";
      json["original_max_position_embeddings"] = s.original_max_seq_len;
      json["attention_factor"] = s.attention_factor;
      json["short_factor"] = s.short_factors;
      json["long_factor"] = s.long_factors;
      break;
    case RopeScalingType::llama3:
      json["rope_type"] = "llama3";
      json["original_max_position_embeddings"] = s.original_max_seq_len;
      json["low_freq_factor"] = s.low_freq_factor;
      json["high_freq_factor"] = s.high_freq_factor;
      break;
  }
  return json;
}

}  // namespace tessera::models
