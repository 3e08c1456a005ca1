// DeepSeek-V3 and R1 (DeepSeek-AI, 2024 and 2025): queries, keys and values of narrow latent vectors, a
// part of each head rotated; mixtures with experts for every token, behind a few dense layers.
#include "tessera/models/spec.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/models/decoder_spec.h"
#include "tessera/models/deepseek/shape.h"
#include "tessera/models/mixture_spec.h"
#include "tessera/models/rope.h"

namespace tessera::models {
namespace deepseek {

const MixtureNames& mixture_names(const ModelShape& /*shape*/) {
  static const MixtureNames names{.shared = "shared_experts"};
  return names;
}

double score_scale(const ModelShape& shape) {
  const auto mscale = shape.own.as<Facts>().score_mscale;
  const double scale = 1 / std::sqrt(static_cast<double>(shape.head_dim));
  if (mscale == 0 || !shape.rope_scaling || shape.rope_scaling->factor <= 1) return scale;
  const double grown = 0.1 * mscale * std::log(shape.rope_scaling->factor) + 1;
  return scale * grown * grown;
}

namespace {

constexpr std::string_view kAttention = "self_attn.";

void read_experts(const JsonKeys& keys, ModelShape& shape, Facts& facts) {
  keys.refuse_unless(keys.text("scoring_func", "sigmoid") == "sigmoid", "scoring_func", "sigmoid");
  keys.refuse_unless(keys.text("topk_method", "noaux_tc") == "noaux_tc", "topk_method", "noaux_tc");
  keys.refuse_unless(keys.size("moe_layer_freq", 1) == 1, "moe_layer_freq", "1");
  facts.num_shared = keys.size("n_shared_experts", 1);
  facts.expert_scale = keys.positive("routed_scaling_factor", 2.5);
  const int64_t dense_ffn_dim = shape.ffn_dim;
  shape.ffn_dim = keys.size("moe_intermediate_size");
  keys.refuse_unless(facts.num_shared <= (int64_t{1} << 12), "n_shared_experts", "at most 4096");
  shape.experts = {.num = keys.size("n_routed_experts"),
                   .top_k = keys.size("num_experts_per_tok"),
                   .normalise = keys.flag("norm_topk_prob", true),
                   .shared_ffn_dim = facts.num_shared * shape.ffn_dim,
                   .groups = keys.size("n_group", 8),
                   .top_groups = keys.size("topk_group", 4),
                   .selection_bias = true,
                   .num_dense_layers = keys.size("first_k_dense_replace", 3, /*least=*/0),
                   .dense_ffn_dim = dense_ffn_dim};
}

/// transformers reads mscale_all_dim twice: for cosines and sines (rope.h), and for scores.
double read_score_mscale(const JsonKeys& keys) {
  for (const auto* group : {"rope_scaling", "rope_parameters"}) {
    if (!keys.has(group)) continue;
    const auto rope = keys.child(group);
    return rope.has("mscale_all_dim") && rope.at("mscale_all_dim") != 0
               ? rope.positive("mscale_all_dim")
               : 0;
  }
  return 0;
}

ModelShape read(const JsonKeys& keys, const HfType& /*type*/) {
  auto shape = read_decoder(keys, ModelFamily::deepseek);
  shape.num_kv_heads = shape.num_heads;
  keys.refuse_unless(keys.size("num_key_value_heads", shape.num_heads) == shape.num_heads,
                     "num_key_value_heads", fmt::format("{}, one for each head", shape.num_heads));
  keys.refuse_unless(keys.text("hidden_act", "silu") == "silu", "hidden_act", "silu");
  Facts facts{.key_rank = keys.size("kv_lora_rank"),
              .rotated_width = keys.size("qk_rope_head_dim"),
              .value_width = keys.size("v_head_dim"),
              .interleaved = keys.flag("rope_interleave", true),
              .score_mscale = read_score_mscale(keys)};
  if (!keys.is_null("q_lora_rank")) facts.query_rank = keys.size("q_lora_rank", 1536);
  constexpr int64_t kWidest = 1 << 20;
  for (const auto* key : {"qk_nope_head_dim", "qk_rope_head_dim", "kv_lora_rank"}) {
    keys.refuse_unless(keys.size(key) <= kWidest, key, fmt::format("at most {}", kWidest));
  }
  for (const auto* key : {"qk_nope_head_dim", "qk_rope_head_dim"}) {
    keys.refuse_unless(keys.size(key) % 2 == 0, key, "an even number");
  }
  keys.refuse_unless(facts.query_rank <= kWidest, "q_lora_rank",
                     fmt::format("at most {}", kWidest));
  shape.head_dim = keys.size("qk_nope_head_dim") + facts.rotated_width;
  shape.out_bias = keys.flag("attention_bias", false);
  read_experts(keys, shape, facts);
  read_rotary(keys, shape);
  if (!shape.rope_scaling) facts.score_mscale = 0;
  shape.own = facts;
  return shape;
}

std::string type_of(const ModelShape& /*shape*/) { return "deepseek_v3"; }

void write(const ModelShape& s, nlohmann::ordered_json& config) {
  const auto& facts = s.own.as<Facts>();
  write_decoder(s, "silu", config);
  config.update({{"intermediate_size", s.experts.dense_ffn_dim},
                 {"moe_intermediate_size", s.ffn_dim},
                 {"head_dim", facts.rotated_width},
                 {"q_lora_rank", nullptr},
                 {"kv_lora_rank", facts.key_rank},
                 {"qk_nope_head_dim", s.head_dim - facts.rotated_width},
                 {"qk_rope_head_dim", facts.rotated_width},
                 {"v_head_dim", facts.value_width},
                 {"rope_interleave", facts.interleaved},
                 {"attention_bias", s.out_bias},
                 {"n_routed_experts", s.experts.num},
                 {"n_shared_experts", facts.num_shared},
                 {"num_experts_per_tok", s.experts.top_k},
                 {"n_group", s.experts.groups},
                 {"topk_group", s.experts.top_groups},
                 {"norm_topk_prob", s.experts.normalise},
                 {"routed_scaling_factor", facts.expert_scale},
                 {"scoring_func", "sigmoid"},
                 {"topk_method", "noaux_tc"},
                 {"first_k_dense_replace", s.experts.num_dense_layers},
                 {"moe_layer_freq", 1},
                 {"num_nextn_predict_layers", 0}});
  if (facts.query_rank > 0) config["q_lora_rank"] = facts.query_rank;
  if (facts.score_mscale > 0) config["rope_scaling"]["mscale_all_dim"] = facts.score_mscale;
}

std::optional<ShapeProblem> problem(const ModelShape& s) {
  const auto& facts = s.own.as<Facts>();
  const auto& experts = s.experts;
  if (experts.num == 0) return ShapeProblem{"n_routed_experts", "expected at least 1, got 0"};
  if (facts.rotated_width >= s.head_dim) {
    return ShapeProblem{"head_dim",
                        fmt::format("expected more than the {} columns that are rotated, got {}",
                                    facts.rotated_width, s.head_dim)};
  }
  if (facts.value_width > s.head_dim) {
    return ShapeProblem{"v_head_dim",
                        fmt::format("expected at most the {} columns of a query's head, got {}",
                                    s.head_dim, facts.value_width)};
  }
  if (s.num_kv_heads != s.num_heads) {
    return ShapeProblem{"num_kv_heads", fmt::format("expected one for each of {} heads, got {}",
                                                    s.num_heads, s.num_kv_heads)};
  }
  if (experts.num % experts.groups != 0) {
    return ShapeProblem{"n_group", fmt::format("expected a divisor of the {} experts, got {}",
                                               experts.num, experts.groups)};
  }
  if (experts.top_groups > experts.groups) {
    return ShapeProblem{"topk_group", fmt::format("expected at most the {} groups, got {}",
                                                  experts.groups, experts.top_groups)};
  }
  const int64_t looked_at = experts.num / experts.groups * experts.top_groups;
  if (experts.top_k > looked_at) {
    return ShapeProblem{
        "num_experts_per_tok",
        fmt::format("expected at most the {} experts of the topk_group {} groups, got {}",
                    looked_at, experts.top_groups, experts.top_k)};
  }
  return std::nullopt;
}

ParameterSpecs parameters(const ModelShape& s) {
  using enum Division;
  const auto& facts = s.own.as<Facts>();
  auto result = decoder_parameters(s, {"input_layernorm", "post_attention_layernorm"});
  std::erase_if(result.block,
                [](const ParameterSpec& each) { return each.name.starts_with(kAttention); });
  std::vector<ParameterSpec> attention;
  const auto add = [&](const std::string& name, std::vector<int64_t> shape, Division division) {
    attention.push_back({std::string(kAttention) + name, std::move(shape), division});
  };
  const int64_t q = s.num_heads * s.head_dim, v = s.num_heads * facts.value_width;
  const int64_t latent = facts.key_rank + facts.rotated_width;
  if (facts.query_rank > 0) {
    add("q_a_proj.weight", {facts.query_rank, s.dim}, per_head);
    if (s.out_bias) add("q_a_proj.bias", {facts.query_rank}, per_head);
    add("q_a_layernorm.weight", {facts.query_rank}, per_head);
    add("q_b_proj.weight", {q, facts.query_rank}, parts);
  } else {
    add("q_proj.weight", {q, s.dim}, parts);
  }
  add("kv_a_proj_with_mqa.weight", {latent, s.dim}, per_head);
  if (s.out_bias) add("kv_a_proj_with_mqa.bias", {latent}, per_head);
  add("kv_a_layernorm.weight", {facts.key_rank}, per_head);
  add("kv_b_proj.weight", {q - s.num_heads * facts.rotated_width + v, facts.key_rank}, parts);
  add("o_proj.weight", {s.dim, v}, parts);
  if (s.out_bias) add("o_proj.bias", {s.dim}, per_position);
  result.block.insert(result.block.begin(), attention.begin(), attention.end());
  add_mixture(s, mixture_names(s), result);
  return result;
}

/// In the place of queries, keys and values of one product each: latent vectors and their norms; what
/// of them becomes heads is put together anew.
ActivationNumbers activations(const ModelShape& s, int64_t position_ranks) {
  const auto& facts = s.own.as<Facts>();
  const auto real = [](int64_t number) { return static_cast<double>(number); };
  const double heads = real(s.num_heads), q = heads * real(s.head_dim);
  const double v = heads * real(facts.value_width), rotated = real(facts.rotated_width);
  const double query_rank = real(facts.query_rank), key_rank = real(facts.key_rank);
  const double keys_and_values = q - heads * rotated + v;  // of the product
  const bool narrow = facts.value_width < s.head_dim;      // values are padded, results cut
  const double norms = facts.query_rank > 0 ? 2 : 1;
  auto numbers = decoder_activations(s, position_ranks);
  numbers.kept.values +=
      2 * query_rank + 2 * key_rank + (narrow ? v : 0) + (narrow ? 0 : keys_and_values - q);
  numbers.kept.floats += norms;
  const double projected = query_rank + key_rank + rotated + keys_and_values - 2 * q;
  numbers.to_attention.values += projected, numbers.selective.values += projected;
  numbers.recomputed.values += query_rank + 2 * key_rank + (narrow ? q + v : 0);
  numbers.recomputed.floats += norms;
  numbers.deferred += 2 * query_rank + 2 * key_rank + rotated + keys_and_values + v - 3 * q;
  if (s.experts.num == 0) {
    // The last product is kept as in layers with experts (train/engine_options.h, block_end).
    numbers.selective.values += real(s.dim) / real(position_ranks);
  }
  add_mixture(s, mixture_names(s), numbers);
  return numbers;
}

int64_t rotary_width(const ModelShape& shape) { return shape.own.as<Facts>().rotated_width; }

}  // namespace
}  // namespace deepseek

const FamilySpec& deepseek_spec() {
  static const FamilySpec spec{.name = "deepseek",
                               .types = {{"deepseek_v3", "DeepseekV3ForCausalLM"}},
                               .read = deepseek::read,
                               .type_of = deepseek::type_of,
                               .write = deepseek::write,
                               .config_names = decoder_config_names(),
                               .problem = deepseek::problem,
                               .parameters = deepseek::parameters,
                               .activations = deepseek::activations,
                               .window = window_of_sliding_layers,
                               .rotary_width = deepseek::rotary_width,
                               .mixture = deepseek::mixture_names,
                               .predicts_further = true,
                               .adapter_targets = {"kv_b_proj", "o_proj"}};
  return spec;
}

}  // namespace tessera::models
