// gpt-oss (OpenAI, gpt-oss-120b & gpt-oss-20b Model Card, 2025): blocks as Llama's with a mixture as
// their feed-forward. Each head has a sink that takes part in its softmaxes and gives nothing (Xiao et
// al., Efficient Streaming Language Models with Attention Sinks, 2024); every second layer has a
// window; experts have biases and bounds.
#include "tessera/models/spec.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "tessera/models/decoder_spec.h"
#include "tessera/models/gpt_oss/shape.h"
#include "tessera/models/mixture_spec.h"
#include "tessera/models/rope.h"

namespace tessera::models {
namespace gpt_oss {

const MixtureNames& mixture_names(const ModelShape& /*shape*/) {
  static const MixtureNames names{.router = "router", .alternating = true};
  return names;
}

namespace {

/// layer_types, or a window in each layer of an even number.
std::vector<bool> read_slides(const JsonKeys& keys, int64_t num_layers) {
  if (keys.has("layer_types")) return read_sliding_layers(keys, num_layers);
  std::vector<bool> slides;
  for (int64_t i = 0; i < std::min<int64_t>(num_layers, 1 << 14); ++i) slides.push_back(i % 2 == 0);
  return slides;
}

/// Where nothing is said of rotary positions they are those of the published models, as in transformers.
void read_positions(const JsonKeys& keys, ModelShape& shape) {
  static const nlohmann::json kPublished{{"rope_parameters",
                                          {{"rope_type", "yarn"},
                                           {"factor", 32},
                                           {"original_max_position_embeddings", 4096},
                                           {"truncate", false}}}};
  constexpr double kTheta = 150'000;
  const bool said = keys.has("rope_scaling") || keys.has("rope_parameters");
  read_rotary(said ? keys : JsonKeys(keys.where(), kPublished), shape,
              keys.positive("rope_theta", kTheta));
}

ModelShape read(const JsonKeys& keys, const HfType& /*type*/) {
  auto shape = read_decoder(keys, ModelFamily::gpt_oss, /*absent_eps=*/1e-5);
  read_decoder_heads(keys, {.absent_kv_heads = 8, .absent_width = 64}, shape);
  keys.refuse_unless(keys.text("hidden_act", "silu") == "silu", "hidden_act", "silu");
  shape.qkv_bias = shape.out_bias = keys.flag("attention_bias", true);
  shape.mlp_bias = true;
  shape.sliding_window = keys.is_null("sliding_window") ? 0 : keys.size("sliding_window", 128);
  shape.sliding_layers = read_slides(keys, shape.num_layers);
  // transformers 5 writes num_local_experts, 4 num_experts.
  const char* num = keys.has("num_local_experts") ? "num_local_experts" : "num_experts";
  shape.experts = {
      .num = keys.size(num), .top_k = keys.size("num_experts_per_tok", 4), .router_bias = true};
  shape.own = Facts{.gate_scale = keys.positive("swiglu_alpha", 1.702),
                    .gate_limit = keys.positive("swiglu_limit", 7)};
  read_positions(keys, shape);
  return shape;
}

std::string type_of(const ModelShape& /*shape*/) { return "gpt_oss"; }

void write(const ModelShape& s, nlohmann::ordered_json& config) {
  const auto& facts = s.own.as<Facts>();
  write_decoder(s, "silu", config);
  if (!s.rope_scaling) config["rope_scaling"] = {{"rope_type", "default"}};
  config.update({{"attention_bias", s.out_bias},
                 {"num_local_experts", s.experts.num},
                 {"num_experts_per_tok", s.experts.top_k},
                 {"swiglu_alpha", facts.gate_scale},
                 {"swiglu_limit", facts.gate_limit},
                 {"output_router_logits", false},
                 {"router_aux_loss_coef", 0.9}});
}

std::optional<ShapeProblem> problem(const ModelShape& s) {
  if (s.experts.num > 0) return std::nullopt;
  return ShapeProblem{"num_local_experts", "expected at least 1, got 0"};
}

ParameterSpecs parameters(const ModelShape& s) {
  auto result = decoder_parameters(s, {"input_layernorm", "post_attention_layernorm"});
  result.block.push_back({"self_attn.sinks", {s.num_heads}});
  add_mixture(s, mixture_names(s), result);
  return result;
}

ActivationNumbers activations(const ModelShape& s, int64_t position_ranks) {
  auto numbers = decoder_activations(s, position_ranks);
  add_mixture(s, mixture_names(s), numbers);
  return numbers;
}

}  // namespace
}  // namespace gpt_oss

const FamilySpec& gpt_oss_spec() {
  static const FamilySpec spec{.name = "gpt_oss",
                               .types = {{"gpt_oss", "GptOssForCausalLM"}},
                               .read = gpt_oss::read,
                               .type_of = gpt_oss::type_of,
                               .write = gpt_oss::write,
                               .config_names = decoder_config_names(),
                               .problem = gpt_oss::problem,
                               .parameters = gpt_oss::parameters,
                               .activations = gpt_oss::activations,
                               .window = window_of_sliding_layers,
                               .rotary_width = whole_head_rotary,
                               .mixture = gpt_oss::mixture_names,
                               .adapter_targets = {"q_proj", "v_proj"}};
  return spec;
}

}  // namespace tessera::models
