// Mixtral (Jiang et al., 2024) and Qwen3-MoE (Yang et al., 2025): a Mistral and a Qwen3 whose
// feed-forwards are mixtures of experts.
#include "tessera/models/spec.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "tessera/models/decoder_spec.h"
#include "tessera/models/moe/shape.h"
#include "tessera/models/rope.h"

namespace tessera::models {
namespace moe {

const Names& names_of(const ModelShape& shape) {
  static const Names mixtral{.mixture = "block_sparse_moe", .gate = "w1", .up = "w3", .down = "w2"};
  static const Names qwen3{
      .mixture = "mlp", .gate = "gate_proj", .up = "up_proj", .down = "down_proj"};
  return shape.qk_norm ? qwen3 : mixtral;
}

namespace {

void read_mixtral(const JsonKeys& keys, ModelShape& shape) {
  keys.refuse_unless(keys.text("hidden_act", "silu") == "silu", "hidden_act", "silu");
  const bool jitters = keys.has("router_jitter_noise") && keys.at("router_jitter_noise") != 0.0;
  keys.refuse_unless(!jitters, "router_jitter_noise", "0");
  shape.experts = {.num = keys.size("num_local_experts"),
                   .top_k = keys.size("num_experts_per_tok")};
  if (keys.has("sliding_window")) shape.sliding_window = keys.size("sliding_window");
}

/// transformers 5 writes num_local_experts, 4 num_experts.
void read_qwen3(const JsonKeys& keys, ModelShape& shape) {
  keys.refuse_unless(keys.text("hidden_act", "silu") == "silu", "hidden_act", "silu");
  keys.refuse_unless(keys.size("decoder_sparse_step", 1) == 1, "decoder_sparse_step", "1");
  const bool some_dense = keys.has("mlp_only_layers") && !keys.at("mlp_only_layers").empty();
  keys.refuse_unless(!some_dense, "mlp_only_layers", "[], experts in every layer");
  const char* num = keys.has("num_local_experts") ? "num_local_experts" : "num_experts";
  shape.experts = {.num = keys.size(num),
                   .top_k = keys.size("num_experts_per_tok"),
                   .normalise = keys.flag("norm_topk_prob", false)};
  shape.own = Facts{.dense_ffn_dim = shape.ffn_dim};
  shape.ffn_dim = keys.size("moe_intermediate_size");
  shape.qkv_bias = shape.out_bias = keys.flag("attention_bias", false);
  if (keys.flag("use_sliding_window", false) && keys.has("sliding_window")) {
    shape.sliding_window = keys.size("sliding_window");
  }
}

ModelShape read(const JsonKeys& keys, const HfType& type) {
  const bool qwen = type.name == "qwen3_moe";
  auto shape = read_decoder(keys, ModelFamily::moe, qwen ? 1e-6 : 1e-5);
  shape.qk_norm = qwen;
  shape.own = Facts();
  read_decoder_heads(keys, {.absent_kv_heads = qwen ? 4 : 8, .absent_width = {}}, shape);
  qwen ? read_qwen3(keys, shape) : read_mixtral(keys, shape);
  read_rotary(keys, shape);
  return shape;
}

std::string type_of(const ModelShape& shape) { return shape.qk_norm ? "qwen3_moe" : "mixtral"; }

void write(const ModelShape& s, nlohmann::ordered_json& config) {
  write_decoder(s, "silu", config);
  config.update({{"num_experts_per_tok", s.experts.top_k},
                 {"output_router_logits", false},
                 {"router_aux_loss_coef", 0.001},
                 {"sliding_window", nullptr}});
  if (s.sliding_window != 0) config["sliding_window"] = s.sliding_window;
  if (!s.qk_norm) {
    config.update({{"num_local_experts", s.experts.num}, {"router_jitter_noise", 0.0}});
    return;
  }
  config.update({{"intermediate_size", s.own.as<Facts>().dense_ffn_dim},
                 {"moe_intermediate_size", s.ffn_dim},
                 {"num_experts", s.experts.num},
                 {"norm_topk_prob", s.experts.normalise},
                 {"decoder_sparse_step", 1},
                 {"mlp_only_layers", nlohmann::json::array()},
                 {"attention_bias", s.out_bias},
                 {"use_sliding_window", s.sliding_window != 0}});
}

std::optional<ShapeProblem> problem(const ModelShape& s) {
  if (s.experts.num > 0) return std::nullopt;
  return ShapeProblem{"num_experts", "expected at least 1, got 0"};
}

ParameterSpecs parameters(const ModelShape& s) {
  auto result = decoder_parameters(s, {"input_layernorm", "post_attention_layernorm"});
  std::erase_if(result.block,
                [](const ParameterSpec& parameter) { return parameter.name.starts_with("mlp."); });
  const auto& names = names_of(s);
  result.block.push_back(
      {names.mixture + ".gate.weight", {s.experts.num, s.dim}, Division::per_head});
  for (int64_t e = 0; e < s.experts.num; ++e) {
    const auto expert = fmt::format("{}.experts.{}.", names.mixture, e);
    const auto add = [&](const std::string& name, int64_t rows, int64_t columns) {
      result.block.push_back(
          {.name = expert + name + ".weight", .shape = {rows, columns}, .of_expert = true});
    };
    add(names.gate, s.ffn_dim, s.dim);
    add(names.up, s.ffn_dim, s.dim);
    add(names.down, s.dim, s.ffn_dim);
  }
  return result;
}

/// Beside attention a token keeps for each of its experts what enters, the three inside and the
/// result, and of the router scores, weights and, as int64, experts, slots and places.
ActivationNumbers activations(const ModelShape& s, int64_t position_ranks) {
  auto numbers = decoder_activations(s, position_ranks);
  const auto f = static_cast<double>(s.ffn_dim), d = static_cast<double>(s.dim),
             k = static_cast<double>(s.experts.top_k), e = static_cast<double>(s.experts.num);
  const double weights = s.experts.normalise ? 2 * k + 1 : k;  // before and after, and their sum
  const double routing = e + weights + 3 * 2 * k;
  numbers.kept.values += 3 * (k - 1) * f + 2 * k * d;
  numbers.kept.floats += routing;
  numbers.selective.values += 2 * (k - 1) * f + k * d;
  numbers.recomputed.values += (k - 1) * f + k * d;
  numbers.recomputed.floats += routing;
  numbers.deferred += 3 * (k - 1) * f + 2 * k * d;
  return numbers;
}

}  // namespace
}  // namespace moe

const FamilySpec& moe_spec() {
  static const FamilySpec spec{
      .name = "moe",
      .types = {{"mixtral", "MixtralForCausalLM"}, {"qwen3_moe", "Qwen3MoeForCausalLM"}},
      .read = moe::read,
      .type_of = moe::type_of,
      .write = moe::write,
      .config_names = decoder_config_names(),
      .problem = moe::problem,
      .parameters = moe::parameters,
      .activations = moe::activations,
      .window = window_after_full_layers,
      .rotary_width = whole_head_rotary,
      .adapter_targets = {"q_proj", "v_proj"}};
  return spec;
}

}  // namespace tessera::models
