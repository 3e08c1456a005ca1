// GPT-2 (Radford et al., 2019).
#include "tessera/models/spec.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "tessera/models/decoder_spec.h"

namespace tessera::models {
namespace gpt2 {
namespace {

ModelShape read(const JsonKeys& keys, const HfType& /*type*/) {
  ModelShape shape{.family = ModelFamily::gpt2,
                   .vocab_size = keys.size("vocab_size"),
                   .dim = keys.size("n_embd"),
                   .num_layers = keys.size("n_layer"),
                   .num_heads = keys.size("n_head"),
                   .max_seq_len = keys.size("n_positions"),
                   .norm_eps = keys.positive("layer_norm_epsilon", 1e-5),
                   .tie_embeddings = keys.flag("tie_word_embeddings", true)};
  keys.refuse_unless(shape.dim % shape.num_heads == 0, "n_head",
                     fmt::format("a divisor of n_embd {}", shape.dim));
  shape.num_kv_heads = shape.num_heads;
  shape.head_dim = shape.dim / shape.num_heads;
  // An absurd width is refused later, by shape_problem; it must not overflow before.
  shape.ffn_dim = keys.size("n_inner", 4 * std::min(shape.dim, int64_t{1} << 40));
  const auto activation = keys.text("activation_function", "gelu_new");
  keys.refuse_unless(activation == "gelu_new" || activation == "gelu_pytorch_tanh",
                     "activation_function", "gelu_new (the tanh form)");
  keys.refuse_unless(keys.flag("scale_attn_weights", true), "scale_attn_weights", "true");
  keys.refuse_unless(!keys.flag("scale_attn_by_inverse_layer_idx", false),
                     "scale_attn_by_inverse_layer_idx", "false");
  keys.refuse_unless(!keys.flag("add_cross_attention", false), "add_cross_attention", "false");
  return shape;
}

std::string type_of(const ModelShape& /*shape*/) { return "gpt2"; }

void write(const ModelShape& s, nlohmann::ordered_json& config) {
  config.update({{"vocab_size", s.vocab_size},
                 {"n_positions", s.max_seq_len},
                 {"n_embd", s.dim},
                 {"n_layer", s.num_layers},
                 {"n_head", s.num_heads},
                 {"n_inner", s.ffn_dim},
                 {"activation_function", "gelu_new"},
                 {"embd_pdrop", s.dropout},
                 {"resid_pdrop", s.dropout},
                 {"attn_pdrop", 0.0},
                 {"layer_norm_epsilon", s.norm_eps},
                 {"tie_word_embeddings", s.tie_embeddings},
                 {"bos_token_id", nullptr},
                 {"eos_token_id", nullptr}});
}

std::optional<ShapeProblem> problem(const ModelShape& s) {
  if (s.num_kv_heads != s.num_heads) {
    return ShapeProblem{
        "num_kv_heads",
        fmt::format("expected {}, the number of heads: gpt2 has no grouped queries; got {}",
                    s.num_heads, s.num_kv_heads)};
  }
  if (s.dim != s.num_heads * s.head_dim) {
    return ShapeProblem{
        "num_heads", fmt::format("expected a divisor of the width {}, got {}", s.dim, s.num_heads)};
  }
  return {};
}

ParameterSpecs parameters(const ModelShape& s) {
  using enum Division;
  const int64_t inner = s.num_heads * s.head_dim;  // dim, or this rank's part of it
  ParameterSpecs result{.embedding = {{"transformer.wte.weight", {s.vocab_size, s.dim}},
                                      {"transformer.wpe.weight", {s.max_seq_len, s.dim}}},
                        .head = {{"transformer.ln_f.weight", {s.dim}, per_position},
                                 {"transformer.ln_f.bias", {s.dim}, per_position}},
                        .block_prefix = "transformer.h."};
  if (!s.tie_embeddings) result.head.push_back({"lm_head.weight", {s.vocab_size, s.dim}});
  result.block = {
      {"ln_1.weight", {s.dim}, per_position},     {"ln_1.bias", {s.dim}, per_position},
      {"attn.c_attn.weight", {s.dim, 3 * inner}}, {"attn.c_attn.bias", {3 * inner}},
      {"attn.c_proj.weight", {inner, s.dim}},     {"attn.c_proj.bias", {s.dim}, per_position},
      {"ln_2.weight", {s.dim}, per_position},     {"ln_2.bias", {s.dim}, per_position},
      {"mlp.c_fc.weight", {s.dim, s.ffn_dim}},    {"mlp.c_fc.bias", {s.ffn_dim}},
      {"mlp.c_proj.weight", {s.ffn_dim, s.dim}},  {"mlp.c_proj.bias", {s.dim}, per_position}};
  return result;
}

ActivationNumbers activations(const ModelShape& s, int64_t position_ranks) {
  const auto real = [](int64_t number) { return static_cast<double>(number); };
  const double ranks = real(position_ranks), own = real(s.dim) / ranks;
  const double q = real(s.num_heads * s.head_dim), f = real(s.ffn_dim), h = real(s.num_heads);
  return {.kept = {2 * own + 4 * q + 2 * f, h + 4 / ranks},
          .to_attention = {2 * own + 4 * q, h},
          .selective = {2 * own + 4 * q + f, h},
          .recomputed = {own + f, 4 / ranks},
          .products = 1,
          .deferred = 2 * real(s.dim) + 4 * q + 2 * f};
}

std::optional<int64_t> no_window(const ModelShape& /*shape*/, int64_t /*layer*/) {
  return std::nullopt;
}

int64_t no_rotary(const ModelShape& /*shape*/) { return 0; }

}  // namespace
}  // namespace gpt2

const FamilySpec& gpt2_spec() {
  static const FamilySpec spec{.name = "gpt2",
                               .types = {{"gpt2", "GPT2LMHeadModel"}},
                               .read = gpt2::read,
                               .type_of = gpt2::type_of,
                               .write = gpt2::write,
                               .config_names = {{"dim", "n_embd"},
                                                {"num_layers", "n_layer"},
                                                {"num_heads", "n_head"},
                                                {"num_kv_heads", "n_head"},
                                                {"ffn_dim", "n_inner"},
                                                {"max_seq_len", "n_positions"}},
                               .problem = gpt2::problem,
                               .parameters = gpt2::parameters,
                               .activations = gpt2::activations,
                               .window = gpt2::no_window,
                               .rotary_width = gpt2::no_rotary,
                               .learned_positions = true,
                               .drops = true,
                               .ffn_follows_width = true,
                               .tied_unless_said = true,
                               .inputs_first = true,
                               .optional_prefix = "transformer.",
                               .adapter_targets = {"c_attn"},
                               // As published (config.json of openai-community/gpt2).
                               .presets = {{"gpt2",
                                            {.family = ModelFamily::gpt2,
                                             .vocab_size = 50257,
                                             .dim = 768,
                                             .num_layers = 12,
                                             .num_heads = 12,
                                             .num_kv_heads = 12,
                                             .head_dim = 64,
                                             .ffn_dim = 3072,
                                             .max_seq_len = 1024,
                                             .tie_embeddings = true}}}};
  return spec;
}

}  // namespace tessera::models
