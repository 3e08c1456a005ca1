#include "tessera/config/model_shape.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/nearest.h"
#include "tessera/config/hf_config.h"
#include "tessera/config/run_config.h"

namespace tessera::config {
namespace {

using Preset = std::pair<std::string, ModelShape>;

// Shapes as published with the weights (config.json of openai-community/gpt2 and of meta-llama/*);
// micro, tiny and small are ours, for tests and benchmarks.
const std::vector<Preset>& presets() {
  static const std::vector<Preset> list = {
      {"micro",
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
      {"gpt2",
       {.family = ModelFamily::gpt2,
        .vocab_size = 50257,
        .dim = 768,
        .num_layers = 12,
        .num_heads = 12,
        .num_kv_heads = 12,
        .head_dim = 64,
        .ffn_dim = 3072,
        .max_seq_len = 1024,
        .tie_embeddings = true}},
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
        .rope_scaling = RopeScaling{.factor = 8}}},
  };
  return list;
}

/// Biases and norms of one block.
int64_t block_vectors(const ModelShape& s) {
  if (s.family == ModelFamily::gpt2) {
    const int64_t biases = 5 * s.dim + s.ffn_dim;  // attention in and out, feed-forward in and out
    return biases + 4 * s.dim;                     // two LayerNorms, weight and bias
  }
  const int64_t qkv = (s.num_heads + 2 * s.num_kv_heads) * s.head_dim;
  return (s.qkv_bias ? qkv : 0) + (s.out_bias ? s.dim : 0) +
         (s.mlp_bias ? 2 * s.ffn_dim + s.dim : 0) + (s.qk_norm ? 2 * s.head_dim : 0) + 2 * s.dim;
}

/// Keys that a query sees on average over a sequence, summed over the layers.
double keys_seen(const ModelShape& s, int64_t seq_len) {
  const auto whole = static_cast<double>(seq_len);
  const double window =
      s.sliding_window == 0 ? whole : std::min(whole, static_cast<double>(s.sliding_window));
  const auto layers = static_cast<double>(s.num_layers);
  const double full = std::min(layers, static_cast<double>(s.num_full_layers));
  return full * whole / 2 + (layers - full) * (window - window * window / (2 * whole));
}

/// Weights of one block's matrix products, biases and norms not counted.
int64_t block_matrix_weights(const ModelShape& s) {
  const int64_t attention =
      2 * s.dim * s.num_heads * s.head_dim + 2 * s.dim * s.num_kv_heads * s.head_dim;
  return attention + (s.family == ModelFamily::llama ? 3 : 2) * s.dim * s.ffn_dim;
}

std::optional<ShapeProblem> size_problem(const ModelShape& s) {
  struct Size {
    const char* field;
    int64_t value, largest;
  };
  // Far beyond every model there is; the products of a parameter count stay below 2^63.
  const Size sizes[] = {
      {"vocab_size", s.vocab_size, 1 << 28},     {"dim", s.dim, 1 << 20},
      {"num_layers", s.num_layers, 1 << 14},     {"num_heads", s.num_heads, 1 << 12},
      {"num_kv_heads", s.num_kv_heads, 1 << 12}, {"head_dim", s.head_dim, 1 << 12},
      {"ffn_dim", s.ffn_dim, 1 << 24},           {"max_seq_len", s.max_seq_len, 1 << 30}};
  for (const auto& size : sizes) {
    if (size.value < 1 || size.value > size.largest) {
      return ShapeProblem{size.field, fmt::format("expected a whole number in [1, {}], got {}",
                                                  size.largest, size.value)};
    }
  }
  return {};
}

}  // namespace

ModelShape model_preset(std::string_view name) {
  for (const auto& [preset, shape] : presets()) {
    if (preset == name) return shape;
  }
  const auto names = model_preset_names();
  std::string list;
  for (const auto& preset : names) list += (list.empty() ? "" : ", ") + preset;
  user_error("model.preset: expected one of {}, got '{}'{}", list, name, did_you_mean(name, names));
}

std::vector<std::string> model_preset_names() {
  std::vector<std::string> names;
  for (const auto& [name, shape] : presets()) names.push_back(name);
  return names;
}

std::optional<ShapeProblem> shape_problem(const ModelShape& s) {
  if (auto problem = size_problem(s)) return problem;
  if (s.num_heads % s.num_kv_heads != 0) {
    return ShapeProblem{"num_kv_heads",
                        fmt::format("expected a divisor of the {} query heads, got {}", s.num_heads,
                                    s.num_kv_heads)};
  }
  if (s.family == ModelFamily::llama && s.head_dim % 2 != 0) {
    return ShapeProblem{
        "head_dim",
        fmt::format("expected an even number for rotary positions, got {}", s.head_dim)};
  }
  const bool dynamic = s.rope_scaling && s.rope_scaling->type == RopeScalingType::dynamic;
  if (dynamic && s.head_dim == 2) {  // theta grows to the power of head_dim / (head_dim - 2)
    return ShapeProblem{"head_dim", "expected more than 2 for dynamic rotary scaling, got 2"};
  }
  if (s.family == ModelFamily::llama && s.dropout != 0) {
    return ShapeProblem{
        "dropout",
        fmt::format("a llama drops nothing, got {}; remove it, or take a gpt2", s.dropout)};
  }
  if (s.family == ModelFamily::gpt2 && s.num_kv_heads != s.num_heads) {
    return ShapeProblem{
        "num_kv_heads",
        fmt::format("expected {}, the number of heads: gpt2 has no grouped queries; got {}",
                    s.num_heads, s.num_kv_heads)};
  }
  if (s.family == ModelFamily::gpt2 && s.dim != s.num_heads * s.head_dim) {
    return ShapeProblem{
        "num_heads", fmt::format("expected a divisor of the width {}, got {}", s.dim, s.num_heads)};
  }
  return {};
}

std::optional<std::string> division_problem(const ModelShape& shape, int64_t tp) {
  const auto fits = [&](int64_t ranks) {
    return shape.num_heads % ranks == 0 &&
           (shape.num_kv_heads % ranks == 0 || ranks % shape.num_kv_heads == 0);
  };
  if (fits(tp)) return std::nullopt;
  std::vector<int64_t> fitting;
  for (int64_t ranks = 1; ranks <= shape.num_heads; ++ranks) {
    if (fits(ranks)) fitting.push_back(ranks);
  }
  return fmt::format("{} heads ({} of keys) cannot be divided over {} ranks; set one of {}",
                     shape.num_heads, shape.num_kv_heads, tp, fmt::join(fitting, ", "));
}

int64_t num_parameters(const ModelShape& s) {
  const bool gpt2 = s.family == ModelFamily::gpt2;
  const int64_t tables = s.vocab_size * s.dim * (s.tie_embeddings ? 1 : 2);
  const int64_t positions = gpt2 ? s.max_seq_len * s.dim : 0;
  const int64_t last_norm = (gpt2 ? 2 : 1) * s.dim;
  return tables + positions + s.num_layers * (block_matrix_weights(s) + block_vectors(s)) +
         last_norm;
}

double training_flops_per_token(const ModelShape& s, int64_t seq_len) {
  const double products =
      static_cast<double>(s.num_layers) * static_cast<double>(block_matrix_weights(s)) +
      static_cast<double>(s.vocab_size) * static_cast<double>(s.dim);
  const double attention = static_cast<double>(s.num_heads * s.head_dim) * keys_seen(s, seq_len);
  return 6 * products + 12 * attention;
}

std::optional<ShapeProblem> override_shape(const ModelSection& model, ModelShape& shape) {
  if (model.path.empty() && model.type != "auto" && model.type != hf_model_type(shape)) {
    return ShapeProblem{
        "type", fmt::format("model.preset {} is a {}, got {}; remove one of the two", model.preset,
                            hf_model_type(shape), model.type)};
  }
  const bool all_heads_keyed = shape.num_kv_heads == shape.num_heads;
  const bool ffn_follows_dim = shape.family == ModelFamily::gpt2 && shape.ffn_dim == 4 * shape.dim;
  shape.vocab_size = model.vocab_size.value_or(shape.vocab_size);
  shape.num_layers = model.num_layers.value_or(shape.num_layers);
  shape.dim = model.dim.value_or(shape.dim);
  shape.num_heads = model.num_heads.value_or(shape.num_heads);
  shape.num_kv_heads =
      model.num_kv_heads.value_or(all_heads_keyed ? shape.num_heads : shape.num_kv_heads);
  shape.tie_embeddings = model.tie_embeddings.value_or(shape.tie_embeddings);
  shape.dropout = model.dropout;
  if (auto problem = size_problem(shape)) return problem;  // before dividing and multiplying
  shape.ffn_dim = model.ffn_dim.value_or(ffn_follows_dim ? 4 * shape.dim : shape.ffn_dim);
  // A head width of the model's own (not dim / heads) stays as long as neither of the two changes.
  if (model.dim || model.num_heads) {
    if (shape.dim % shape.num_heads != 0) {
      return ShapeProblem{
          model.num_heads ? "num_heads" : "dim",
          fmt::format("{} heads do not divide a width of {}; set a model.dim that is a multiple of "
                      "model.num_heads",
                      shape.num_heads, shape.dim)};
    }
    shape.head_dim = shape.dim / shape.num_heads;
  }
  return shape_problem(shape);
}

ModelShape resolve_model_shape(const ModelSection& model) {
  auto shape =
      model.path.empty()
          ? model_preset(model.preset)
          : read_model_shape(std::filesystem::path(model.path) / "config.json", model.type);
  if (const auto problem = override_shape(model, shape))
    user_error("model.{}: {}", problem->field, problem->message);
  return shape;
}

}  // namespace tessera::config
