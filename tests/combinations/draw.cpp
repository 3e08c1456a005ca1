#include "tests/combinations/draw.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/config/run_config.h"
#include "tessera/models/moe/shape.h"
#include "tessera/plan/run_plan.h"
#include "tests/combinations/accelerate_changes.h"
#include "tests/combinations/data.h"

namespace tessera::combinations {
namespace {

constexpr int kCandidates = 8;

std::vector<config::Override> overrides_of(const Settings& settings) {
  std::vector<config::Override> overrides;
  for (const auto& [key, value] : settings) overrides.push_back({.key = key, .value = value});
  return overrides;
}

config::RunConfig config_of(const Settings& job) {
  return config::load_run_config("", overrides_of(job)).config;
}

/// `settings` without those that could have no effect beside the others.
Settings effective(Settings settings, const Trial& trial) {
  for (size_t before = 0; before != settings.size();) {
    before = settings.size();
    const auto config = config_of(job_of(trial, settings));
    std::erase_if(settings, [&](const auto& item) {
      return !config::needed_for_effect(item.first, config).empty();
    });
  }
  return settings;
}

}  // namespace

Settings job_of(const Trial& trial, const Settings& layout) {
  Settings job = base_settings();
  for (const auto* settings : {&trial.function, &layout}) {
    for (const auto& [key, value] : *settings) job[key] = value;
  }
  job["model.path"] = "model";
  name_data("", job);
  return job;
}

std::optional<std::string> refusal(const Trial& trial, const Settings& layout) {
  try {
    const auto config = config_of(job_of(trial, layout));
    config::check(config, {});
    plan::make_plan(config, trial.shape);
  } catch (const UserError& error) {
    return error.what();
  }
  return {};
}

template <typename T>
const T& Draw::one_of(const std::vector<T>& list) {
  return list[static_cast<size_t>(number(0, static_cast<int64_t>(list.size()) - 1))];
}

int64_t Draw::number(int64_t low, int64_t high) {
  return std::uniform_int_distribution<int64_t>(low, high)(random_);
}

bool Draw::chance(double probability) {
  return std::uniform_real_distribution<double>(0, 1)(random_) < probability;
}

/// One of the families whose feed-forwards are mixtures.
void Draw::add_experts(models::ModelShape& shape) {
  using models::moe::Kind;
  const auto kind =
      one_of<Kind>({Kind::mixtral, Kind::olmoe, Kind::qwen2, Kind::qwen3, Kind::residual});
  shape.family = models::ModelFamily::moe;
  shape.own = models::moe::Facts{.kind = kind};
  shape.experts.dense_ffn_dim = shape.ffn_dim;
  shape.experts.num = one_of<int64_t>({2, 3, 4, 6, 8});
  // The normalised weight of one expert is 1, and its router's gradient nothing but rounding.
  const bool always = kind == Kind::mixtral;
  shape.experts.top_k = number(always ? 2 : 1, std::min<int64_t>(3, shape.experts.num));
  shape.experts.normalise = always || (shape.experts.top_k > 1 && chance(0.5));
  shape.qk_norm = kind == Kind::qwen3;
  shape.qkv_bias = kind == Kind::qwen2;
  if (kind == Kind::qwen2) shape.experts.shared_ffn_dim = number(20, 60);
  if (kind == Kind::residual) shape.experts.shared_ffn_dim = shape.ffn_dim;
}

models::ModelShape Draw::draw_shape() {
  models::ModelShape shape;
  const auto family =
      one_of<std::string>({"llama", "mistral", "qwen2", "qwen3", "gpt2", "mixture"});
  shape.vocab_size = number(kLeastVocabulary, 331);
  shape.num_layers = number(1, 6);
  shape.head_dim = 2 * number(3, 9);
  shape.num_kv_heads = number(1, 4);
  shape.num_heads = shape.num_kv_heads * number(1, 2);
  shape.dim = shape.num_heads * shape.head_dim;
  shape.ffn_dim = number(20, 120);
  shape.max_seq_len = 64;
  shape.tie_embeddings = chance(0.3);
  if (family == "llama") {
    shape.qkv_bias = shape.out_bias = chance(0.3);
    shape.mlp_bias = chance(0.3);
  } else if (family == "mistral") {
    shape.sliding_window = number(5, 30);
  } else if (family == "qwen2") {
    shape.qkv_bias = true;
  } else if (family == "qwen3") {
    shape.qk_norm = true;
    shape.head_dim += 2 * number(0, 3);  // beside the width
  } else if (family == "mixture") {
    add_experts(shape);
  } else {
    shape.family = models::ModelFamily::gpt2;
    shape.num_kv_heads = shape.num_heads;
    shape.ffn_dim = 4 * shape.dim;
  }
  return shape;
}

/// Some of the keys of a role, each with one of its values.
Settings Draw::draw_role(Role role, double probability) {
  Settings settings;
  for (const auto& section : config::sections()) {
    for (const auto& field : section.fields) {
      if (tried().at(field.key).role != role) continue;
      const auto values = values_of(field);
      if (!values.empty() && chance(probability)) settings[field.key] = one_of(values);
    }
  }
  return settings;
}

/// Up to four ranks, sometimes six or eight, on the axes.
Settings Draw::draw_mesh(const models::ModelShape& shape) {
  struct Mesh {
    int64_t pp, dp_replicate, dp_shard, tp;
  };
  std::vector<Mesh> meshes;
  for (int64_t pp = 1; pp <= 3; ++pp) {
    for (int64_t replicate = 1; replicate <= 3; ++replicate) {
      for (int64_t shard = 1; shard <= 4; ++shard) {
        for (int64_t tp = 1; tp <= 3; ++tp) {
          const int64_t ranks = pp * replicate * shard * tp;
          const bool large = ranks == 6 || ranks == 8;
          if (ranks <= 4 || (large && chance(0.1))) meshes.push_back({pp, replicate, shard, tp});
        }
      }
    }
  }
  const auto [pp, replicate, shard, tp] = one_of(meshes);
  const bool has_experts = shape.experts.num > 0;
  mesh::MeshShape mesh_shape{.dp_replicate = static_cast<int>(replicate),
                             .dp_shard = static_cast<int>(shard),
                             .tp = static_cast<int>(tp)};
  std::vector<int64_t> tensor_widths{tp};
  for (mesh_shape.etp = 1; mesh_shape.etp < tp && has_experts; ++mesh_shape.etp) {
    if (!mesh::etp_problem(mesh_shape)) tensor_widths.push_back(mesh_shape.etp);
  }
  const int64_t etp = one_of(tensor_widths);
  mesh_shape.etp = static_cast<int>(etp);
  std::vector<int64_t> widths{1};
  for (mesh_shape.ep = 2; mesh_shape.ep <= 4; ++mesh_shape.ep) {
    if (mesh::ep_problem(mesh_shape) || !has_experts) continue;
    if (!config::experts_problem(shape, mesh_shape)) widths.push_back(mesh_shape.ep);
  }
  Settings mesh{{"parallel.num_ranks", fmt::format("{}", pp * replicate * shard * tp)},
                {"parallel.pp", fmt::format("{}", pp)},
                {"parallel.dp_replicate", fmt::format("{}", replicate)},
                {"parallel.dp_shard", fmt::format("{}", shard)},
                {"parallel.tp", fmt::format("{}", tp)},
                {"parallel.ep", fmt::format("{}", one_of(widths))}};
  if (etp < tp) mesh["parallel.etp"] = fmt::format("{}", etp);
  return mesh;
}

std::optional<Settings> Draw::draw_layout(const Trial& trial) {
  auto layout = draw_role(Role::layout, 0.4);
  layout.merge(draw_mesh(trial.shape));
  const auto placement = layout.find("parallel.placement");
  if (layout["parallel.dp_shard"] != "1" &&
      (placement == layout.end() || placement->second == "replicate")) {
    layout["parallel.placement"] = "full_shard";
  }
  const int64_t stages = std::stoi(layout["parallel.pp"]);
  if (stages > 1 && chance(0.15)) {
    std::vector<int64_t> layers(static_cast<size_t>(stages));
    for (int64_t i = 0; i < trial.shape.num_layers; ++i)
      ++layers[static_cast<size_t>(number(0, stages - 1))];
    layout["parallel.stage_layers"] = fmt::format("[{}]", fmt::join(layers, ", "));
    layout.erase("parallel.stages_per_rank");
  }
  layout = effective(std::move(layout), trial);
  if (refusal(trial, layout)) return {};
  return layout;
}

Trial Draw::draw_function() {
  Trial trial;
  trial.shape = draw_shape();
  trial.function = draw_role(Role::function, 0.2);
  if (trial.shape.family == models::ModelFamily::gpt2 && chance(0.4)) {
    trial.function["model.dropout"] = "0.1";
  }
  if (trial.function.contains("adapter.type") && chance(0.4)) {
    trial.function["model.weights"] = one_of<std::string>({"nf4", "nf4_double", "fp4", "int8"});
  }
  if (trial.shape.experts.num > 0) draw_balance(trial.function);
  trial.function = effective(std::move(trial.function), trial);
  return trial;
}

/// What a mixture has besides; in float32, as other roundings choose other experts.
void Draw::draw_balance(Settings& function) {
  std::erase_if(function, [](const auto& item) { return item.first.starts_with("precision."); });
  if (chance(0.5)) {
    function["moe.aux_loss"] = one_of<std::string>({"sequence", "batch", "transformers"});
    function["moe.aux_coefficient"] = "0.1";
  }
  if (chance(0.3)) function["moe.z_coefficient"] = "0.05";
  if (chance(0.3)) function["moe.selection_bias_rate"] = "0.01";
  if (chance(0.4)) {
    // Below 1 experts lack room in any row, be all of them chosen.
    function["moe.capacity_factor"] = one_of<std::string>({"0.5", "0.75"});
    function["moe.min_capacity"] = one_of<std::string>({"0", "4"});
    function["moe.drop_policy"] = one_of<std::string>({"probs", "position", "choice", "random"});
    if (chance(0.5)) function["moe.eval_capacity_factor"] = "0.6";
  }
  if (chance(0.3)) function["moe.input_jitter"] = "0.1";
  if (!function.contains("moe.selection_bias_rate") && chance(0.2)) {
    function["moe.sampling"] = one_of<std::string>({"all", "but_first"});
  }
}

std::optional<Trial> Draw::candidate() {
  auto trial = draw_function();
  const auto layout = draw_layout(trial);
  if (!layout) return {};
  trial.layout = *layout;
  if (!chance(0.3)) return trial;
  trial.resumed = draw_layout(trial);
  if (!trial.resumed) return {};
  const int64_t steps = config_of(job_of(trial, trial.layout)).train.steps;
  trial.resumed_step = number(1, steps - 1);
  trial.layout["checkpoint.every"] = fmt::format("{}", trial.resumed_step);
  return trial;
}

/// What Accelerate's file says of precision and clipping takes the place of the job's.
Trial Draw::draw_accelerate() {
  while (true) {
    auto trial = draw_function();
    if (trial.shape.experts.num > 0) continue;  // the file draws precisions
    std::erase_if(trial.function, [](const auto& item) {
      return item.first.starts_with("precision.") || item.first == "optimizer.max_grad_norm";
    });
    trial.layout["parallel.num_ranks"] = fmt::format("{}", number(1, 3));
    if (refusal(trial, {})) continue;
    trial.accelerate = draw_accelerate_file(random_);
    return trial;
  }
}

/// The pairs of values that a trial sets together. Numbers of ranks and the like are values, too.
std::set<Draw::Pair> Draw::pairs_of(const Trial& trial) const {
  std::vector<const Settings*> layouts{&trial.layout};
  if (trial.resumed) layouts.push_back(&*trial.resumed);
  std::set<Pair> pairs;
  for (const auto* layout : layouts) {
    std::set<std::string> items;
    for (const auto* settings : {&trial.function, layout}) {
      for (const auto& [key, value] : *settings) items.insert(fmt::format("{}={}", key, value));
    }
    for (auto a = items.begin(); a != items.end(); ++a) {
      for (auto b = std::next(a); b != items.end(); ++b) pairs.emplace(*a, *b);
    }
  }
  return pairs;
}

Trial Draw::next() {
  if (chance(0.12)) return draw_accelerate();
  std::optional<Trial> best;
  std::set<Pair> best_pairs;
  size_t best_new = 0;
  for (int found = 0; found < kCandidates;) {
    auto trial = candidate();
    if (!trial) continue;
    ++found;
    auto pairs = pairs_of(*trial);
    const auto fresh = static_cast<size_t>(
        std::ranges::count_if(pairs, [&](const auto& pair) { return !pairs_.contains(pair); }));
    if (best && fresh <= best_new) continue;
    best = std::move(trial), best_pairs = std::move(pairs), best_new = fresh;
  }
  pairs_.merge(best_pairs);
  return *best;
}

size_t Draw::num_key_pairs() const {
  const auto key_of = [](const std::string& item) { return item.substr(0, item.find('=')); };
  std::set<Pair> keys;
  for (const auto& [a, b] : pairs_) keys.emplace(key_of(a), key_of(b));
  return keys.size();
}

}  // namespace tessera::combinations
