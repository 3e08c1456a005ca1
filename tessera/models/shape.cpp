#include "tessera/models/shape.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

#include "tessera/base/error.h"
#include "tessera/base/fitting.h"
#include "tessera/base/nearest.h"
#include "tessera/models/spec.h"

namespace tessera::models {
namespace {

using Preset = std::pair<std::string, ModelShape>;

/// Those of every family, the smallest first.
const std::vector<Preset>& all_presets() {
  static const std::vector<Preset> list = [] {
    std::vector<Preset> presets;
#define TESSERA_FAMILY(name) \
  for (const auto& preset : spec_of(ModelFamily::name).presets) presets.push_back(preset);
#include "tessera/models/families.def"
#undef TESSERA_FAMILY
    std::ranges::stable_sort(presets, {},
                             [](const auto& preset) { return num_parameters(preset.second); });
    return presets;
  }();
  return list;
}

int64_t num_elements(const std::vector<ParameterSpec>& parameters) {
  return std::accumulate(
      parameters.begin(), parameters.end(), int64_t{0},
      [](int64_t sum, const auto& parameter) { return sum + parameter.num_elements(); });
}

/// Elements of a block's parameters of which `counts` says yes: of experts those that a token takes.
template <typename Counts>
int64_t active_elements(const ModelShape& s, const std::vector<ParameterSpec>& block,
                        const Counts& counts) {
  int64_t of_experts = 0, others = 0;
  for (const auto& parameter : block) {
    if (counts(parameter)) (parameter.of_expert ? of_experts : others) += parameter.num_elements();
  }
  return others + (s.experts.num == 0 ? 0 : of_experts / s.experts.num * s.experts.top_k);
}

/// Sum over the blocks of what `number` says of one: its shape and its parameters.
template <typename Number>
int64_t over_blocks(const ModelShape& s, const Number& number) {
  int64_t sum = 0;
  for (const auto& [alike, count] : alike_layers(s)) {
    sum += count * number(alike, spec_of(s.family).parameters(alike).block);
  }
  return sum;
}

/// Keys that a query sees on average over a sequence, summed over the layers.
double keys_seen(const ModelShape& s, int64_t seq_len) {
  const auto& spec = spec_of(s.family);
  const auto whole = static_cast<double>(seq_len);
  double keys = 0;
  for (int64_t layer = 0; layer < s.num_layers; ++layer) {
    const auto window =
        std::min(whole, static_cast<double>(spec.window(s, layer).value_or(seq_len)));
    keys += window - window * window / (2 * whole);
  }
  return keys;
}

}  // namespace

ModelShape shape_of_layer(const ModelShape& shape, int64_t layer) {
  auto result = shape;
  if (layer < shape.experts.num_dense_layers) {
    result.ffn_dim = shape.experts.dense_ffn_dim;
    result.experts = {};
  }
  result.experts.num_dense_layers = 0;
  return result;
}

std::vector<AlikeLayers> alike_layers(const ModelShape& shape) {
  const int64_t dense = std::min(shape.experts.num_dense_layers, shape.num_layers);
  std::vector<AlikeLayers> result;
  if (dense > 0) result.push_back({shape_of_layer(shape, 0), dense});
  if (dense < shape.num_layers) {
    result.push_back({shape_of_layer(shape, dense), shape.num_layers - dense});
  }
  return result;
}

ModelShape model_preset(std::string_view name) {
  for (const auto& [preset, shape] : all_presets()) {
    if (preset == name) return shape;
  }
  const auto names = model_preset_names();
  user_error("preset: expected one of {}, got '{}'{}", fmt::join(names, ", "), name,
             did_you_mean(name, names));
}

std::vector<std::string> model_preset_names() {
  std::vector<std::string> names;
  for (const auto& [name, shape] : all_presets()) names.push_back(name);
  return names;
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
  constexpr int64_t kMostExperts = 1 << 12;
  if (s.experts.num < 0 || s.experts.num > kMostExperts) {
    return ShapeProblem{"num_experts", fmt::format("expected a whole number in [0, {}], got {}",
                                                   kMostExperts, s.experts.num)};
  }
  if (s.experts.num > 0 && (s.experts.top_k < 1 || s.experts.top_k > s.experts.num)) {
    return ShapeProblem{
        "num_experts_per_tok",
        fmt::format("expected a whole number in [1, {}], the number of experts, got {}",
                    s.experts.num, s.experts.top_k)};
  }
  constexpr int64_t kWidest = 1 << 24;
  for (const int64_t width : {s.experts.shared_ffn_dim, s.experts.dense_ffn_dim}) {
    if (width > kWidest) {
      return ShapeProblem{"ffn_dim", fmt::format("expected at most {}, got {}", kWidest, width)};
    }
  }
  if (s.experts.num_dense_layers > 0 && s.experts.num_dense_layers >= s.num_layers) {
    return ShapeProblem{"num_layers",
                        fmt::format("expected more than the {} that have no experts, got {}",
                                    s.experts.num_dense_layers, s.num_layers)};
  }
  for (const auto& size : sizes) {
    if (size.value < 1 || size.value > size.largest) {
      return ShapeProblem{size.field, fmt::format("expected a whole number in [1, {}], got {}",
                                                  size.largest, size.value)};
    }
  }
  return {};
}

std::optional<ShapeProblem> shape_problem(const ModelShape& s) {
  if (auto problem = size_problem(s)) return problem;
  const auto& spec = spec_of(s.family);
  if (s.num_heads % s.num_kv_heads != 0) {
    return ShapeProblem{"num_kv_heads",
                        fmt::format("expected a divisor of the {} query heads, got {}", s.num_heads,
                                    s.num_kv_heads)};
  }
  if (spec.rotary_width(s) > 0 && s.head_dim % 2 != 0) {
    return ShapeProblem{
        "head_dim",
        fmt::format("expected an even number for rotary positions, got {}", s.head_dim)};
  }
  const bool dynamic = s.rope_scaling && s.rope_scaling->type == RopeScalingType::dynamic;
  if (dynamic && s.head_dim == 2) {  // theta grows to the power of head_dim / (head_dim - 2)
    return ShapeProblem{"head_dim", "expected more than 2 for dynamic rotary scaling, got 2"};
  }
  const auto known = std::ssize(s.sliding_layers);
  if (known > 0 && s.num_layers > known) {
    return ShapeProblem{"num_layers",
                        fmt::format("expected at most {}, of which config.json says whether they "
                                    "have a window, got {}",
                                    known, s.num_layers)};
  }
  if (!spec.drops && s.dropout != 0) {
    return ShapeProblem{
        "dropout",
        fmt::format("a {} drops nothing, got {}; remove it, or take a gpt2", spec.name, s.dropout)};
  }
  return spec.problem(s);
}

std::optional<std::string> division_problem(const ModelShape& shape, int64_t tp) {
  const auto fits = [&](int64_t ranks) {
    return shape.num_heads % ranks == 0 &&
           (shape.num_kv_heads % ranks == 0 || ranks % shape.num_kv_heads == 0);
  };
  if (fits(tp)) return std::nullopt;
  return fmt::format("{} heads ({} of keys) cannot be divided over {} ranks; set one of {}",
                     shape.num_heads, shape.num_kv_heads, tp,
                     fmt::join(fitting_numbers(shape.num_heads, fits), ", "));
}

double expert_rows(const ModelShape& shape) {
  return static_cast<double>(shape.experts.top_k) / static_cast<double>(shape.experts.token_ranks);
}

std::optional<int64_t> longest_sequence(const ModelShape& shape) {
  if (!spec_of(shape.family).learned_positions) return std::nullopt;
  return shape.max_seq_len;
}

int64_t num_parameters(const ModelShape& s) {
  const auto parameters = spec_of(s.family).parameters(s);
  const int64_t blocks = over_blocks(
      s, [](const ModelShape& /*alike*/, const auto& block) { return num_elements(block); });
  return num_elements(parameters.embedding) + blocks + num_elements(parameters.head);
}

int64_t num_active_parameters(const ModelShape& s) {
  const auto parameters = spec_of(s.family).parameters(s);
  const int64_t blocks = over_blocks(s, [](const ModelShape& alike, const auto& block) {
    return active_elements(alike, block, [](const ParameterSpec& /*parameter*/) { return true; });
  });
  return num_elements(parameters.embedding) + blocks + num_elements(parameters.head);
}

int64_t matrix_weights(const ModelShape& s) {
  const int64_t of_blocks = over_blocks(s, [](const ModelShape& alike, const auto& block) {
    return active_elements(
        alike, block, [](const ParameterSpec& parameter) { return parameter.shape.size() > 1; });
  });
  return of_blocks + s.vocab_size * s.dim;
}

bool ends_with_product(const ModelShape& s) {
  return !spec_of(s.family).norms_results && s.experts.num == 0;
}

double training_flops_per_token(const ModelShape& s, int64_t seq_len) {
  const double attention = static_cast<double>(s.num_heads * s.head_dim) * keys_seen(s, seq_len);
  return 6 * static_cast<double>(matrix_weights(s)) + 12 * attention;
}

double masked_flops_per_token(const ModelShape& s, int64_t seq_len) {
  const double all = static_cast<double>(s.num_layers) * static_cast<double>(seq_len);
  return 12 * static_cast<double>(s.num_heads * s.head_dim) * (all - keys_seen(s, seq_len));
}

}  // namespace tessera::models
