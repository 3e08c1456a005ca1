#include "tessera/models/adapter.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <numeric>
#include <regex>
#include <set>
#include <string_view>

#include "tessera/base/error.h"
#include "tessera/base/nearest.h"
#include "tessera/base/text.h"
#include "tessera/models/adapter_match.h"

namespace tessera::models {
namespace {

std::vector<Entry> entries_of(const std::string& member, const std::vector<std::string>& texts) {
  std::vector<Entry> entries;
  for (const auto& text : texts) entries.emplace_back(member, text);
  return entries;
}

/// Names that a path ends with, for "did you mean".
std::vector<std::string> last_names(const std::vector<Named>& parameters) {
  std::set<std::string> names;
  for (const auto& p : parameters) {
    if (!p.is_matrix()) continue;
    for (const auto& path : {p.path, p.stored}) names.insert(path.substr(path.rfind('.') + 1));
  }
  return {names.begin(), names.end()};
}

/// Each entry must match a matrix: one that does not is a slip.
void check_all_match(const std::string& member, const std::vector<Entry>& entries,
                     const std::vector<Named>& parameters) {
  for (const auto& entry : entries) {
    const bool found = std::ranges::any_of(
        parameters, [&](const Named& p) { return p.is_matrix() && entry.matches(p); });
    if (found) continue;
    const auto names = last_names(parameters);
    user_error("adapter.{}: '{}' matches no matrix of the model, whose modules are {}{}", member,
               printable(entry.text()), fmt::join(names, ", "), did_you_mean(entry.text(), names));
  }
}

/// PEFT's rule by which a module that is trained whole, or stands in one, has no adapter.
bool stands_in_saved(const std::vector<std::regex>& saved, const Named& parameter) {
  return std::ranges::any_of(saved, [&](const std::regex& pattern) {
    return std::regex_match(parameter.path, pattern) || std::regex_match(parameter.stored, pattern);
  });
}

std::vector<std::string> targets_of(const AdapterSpec& spec, const ModelShape& shape) {
  if (!spec.targets.empty()) return spec.targets;
  const auto& family = spec_of(shape.family);
  if (family.adapter_targets.empty()) {
    user_error("adapter.targets: a {} has no usual ones; set all-linear, or to names of modules",
               family.name);
  }
  return family.adapter_targets;
}

void check_layers(const AdapterSpec& spec, const ModelShape& shape) {
  for (const auto layer : spec.layers) {
    if (layer >= 0 && layer < shape.num_layers) continue;
    user_error("adapter.layers: expected numbers in [0, {}], the model's blocks, got {}",
               shape.num_layers - 1, layer);
  }
}

/// Matrices that get an adapter.
std::vector<Named> adapted_matrices(const AdapterSpec& spec, const ModelShape& shape,
                                    const std::vector<Named>& parameters) {
  check_layers(spec, shape);
  const auto targets = entries_of("targets", targets_of(spec, shape));
  const auto excluded = entries_of("exclude", spec.exclude);
  check_all_match("targets", targets, parameters);
  check_all_match("exclude", excluded, parameters);
  std::vector<std::regex> saved;
  for (const auto& name : spec.modules_to_save) {
    saved.push_back(compiled("modules_to_save", name, "(^|.*\\.)" + name + "($|\\..*)"));
  }
  const auto is_target = [&](const Named& p) {
    const bool in_layers =
        spec.layers.empty() || (p.layer && std::ranges::count(spec.layers, *p.layer) > 0);
    return std::ranges::any_of(targets, [&](const Entry& entry) {
      return entry.is_path_of(p) || (in_layers && entry.matches(p));
    });
  };
  const auto is_wanted = [&](const Named& p) {
    const auto matched = [&](const Entry& entry) { return entry.matches(p); };
    return p.is_matrix() && is_target(p) && std::ranges::none_of(excluded, matched) &&
           !stands_in_saved(saved, p);
  };
  std::vector<Named> wanted;
  std::ranges::copy_if(parameters, std::back_inserter(wanted), is_wanted);
  if (wanted.empty()) {
    user_error(
        "adapter.targets: {} leave no module of the model after exclude, layers and "
        "modules_to_save",
        fmt::join(targets_of(spec, shape), ", "));
  }
  return wanted;
}

AdaptedModule adapted(const Named& parameter, bool inputs_first) {
  AdaptedModule module{.path = parameter.path,
                       .embedding = parameter.embedding,
                       .layer = parameter.layer,
                       .of_expert = parameter.of_expert};
  module.inputs_first = parameter.embedding || (inputs_first && parameter.layer);
  module.inputs = parameter.shape[module.inputs_first ? 0 : 1];
  module.outputs = parameter.shape[module.inputs_first ? 1 : 0];
  return module;
}

/// Module paths on the way to a parameter: "model", "model.norm".
std::vector<std::string> paths_to(const std::string& path) {
  std::vector<std::string> paths;
  for (auto dot = path.find('.'); dot != std::string::npos; dot = path.find('.', dot + 1)) {
    paths.push_back(path.substr(0, dot));
  }
  paths.push_back(path);
  return paths;
}

/// The head's path, as which a tied table is known, too.
constexpr const char* kHead = "lm_head";

bool is_saved(const std::string& name, const Named& p, bool is_tied_table) {
  const auto ends = [&](const std::string& path) { return path.ends_with(name); };
  return std::ranges::any_of(paths_to(p.path), ends) || ends(p.stored) ||
         (is_tied_table && ends(kHead));
}

bool is_trained_bias(AdapterBias bias, const std::set<std::string>& adapted_paths, const Named& p) {
  if (p.kind != "bias") return false;
  switch (bias) {
    case AdapterBias::none:
      return false;
    case AdapterBias::all:
      return true;
    case AdapterBias::lora_only:
      return adapted_paths.contains(p.path);
  }
  __builtin_unreachable();
}

TrainedParameter of_model(const Named& p) {
  return {.name = p.name(),
          .shape = p.shape,
          .of_adapter = false,
          .layer = p.layer,
          .of_embedding = p.embedding,
          .division = p.division,
          .of_expert = p.of_expert};
}

/// Parameters of the model itself that are trained beside the adapter's.
std::vector<TrainedParameter> trained_of_model(const AdapterSpec& spec, const ModelShape& shape,
                                               const std::vector<Named>& parameters,
                                               const std::vector<AdaptedModule>& modules) {
  std::set<std::string> adapted_paths, used;
  for (const auto& module : modules) adapted_paths.insert(module.path);
  std::vector<TrainedParameter> trained;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const auto& p = parameters[i];
    bool whole = false;
    for (const auto& name : spec.modules_to_save) {
      if (!is_saved(name, p, i == 0 && shape.tie_embeddings)) continue;
      used.insert(name);
      whole = true;
    }
    if (!whole && !is_trained_bias(spec.bias, adapted_paths, p)) continue;
    trained.push_back(of_model(p));
  }
  for (const auto& name : spec.modules_to_save) {
    if (used.contains(name)) continue;
    const auto names = last_names(parameters);
    user_error("adapter.modules_to_save: '{}' matches no module of the model{}", printable(name),
               did_you_mean(name, names));
  }
  return trained;
}

}  // namespace

int64_t TrainedParameter::num_elements() const {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

std::vector<AdaptedModule> adapted_modules(const AdapterSpec& spec, const ModelShape& shape) {
  if (spec.type == AdapterType::none) return {};
  const auto parameters = parameters_by_path(shape);
  PatternTable<int64_t> ranks("rank_pattern", spec.rank_pattern);
  PatternTable<double> alphas("alpha_pattern", spec.alpha_pattern);
  std::vector<AdaptedModule> modules;
  for (const auto& p : adapted_matrices(spec, shape, parameters)) {
    auto module = adapted(p, spec_of(shape.family).inputs_first);
    if (module.of_expert && spec.dropout > 0) {
      // Its rows come in another order in each layout; PEFT refuses it, too.
      user_error(
          "adapter.dropout: expected 0 with adapters in experts ({}), got {}; set 0, or leave "
          "experts out of adapter.targets",
          module.path, spec.dropout);
    }
    module.rank = ranks.value_of(p, spec.rank);
    const auto rank = static_cast<double>(module.rank);
    module.alpha = alphas.value_of(p, spec.alpha);
    module.scale = module.alpha / (spec.rslora ? std::sqrt(rank) : rank);
    // Beyond its smaller side a rank says nothing more, but all-linear has layers of one row (and so
    // has PEFT). What is decomposed has no more vectors.
    const bool decomposed = spec.init == AdapterInit::orthogonal || spec.init == AdapterInit::pissa;
    const auto [smaller, larger] = std::minmax(module.inputs, module.outputs);
    const auto most = decomposed ? smaller : larger;
    if (module.rank < 1 || module.rank > most) {
      user_error("adapter.rank: expected 1 to {}, the {} side of {} ({} x {}), got {}", most,
                 decomposed ? "smaller" : "larger", module.path, module.outputs, module.inputs,
                 module.rank);
    }
    if (spec.init == AdapterInit::orthogonal && !module.embedding && module.rank % 2 != 0) {
      user_error("adapter.rank: expected an even one of {} for adapter.init orthogonal, got {}",
                 module.path, module.rank);
    }
    modules.push_back(std::move(module));
  }
  const auto refuse_idle = [](const char* member, const std::vector<std::string>& idle) {
    if (idle.empty()) return;
    user_error("adapter.{}: '{}' matches no module that has an adapter", member,
               printable(idle.front()));
  };
  refuse_idle("rank_pattern", ranks.idle());
  refuse_idle("alpha_pattern", alphas.idle());
  return modules;
}

std::vector<TrainedParameter> parameters_of(const AdaptedModule& module, AdapterType type) {
  std::vector<TrainedParameter> parameters;
  const auto add = [&](const std::string& name, std::vector<int64_t> shape) {
    parameters.push_back({.name = module.path + name,
                          .shape = std::move(shape),
                          .layer = module.layer,
                          .of_embedding = module.embedding,
                          .of_expert = module.of_expert});
  };
  const std::string infix = module.embedding ? ".lora_embedding_" : ".lora_";
  add(infix + "A", {module.rank, module.inputs});
  add(infix + "B", {module.outputs, module.rank});
  if (type == AdapterType::dora) add(".lora_magnitude_vector", {module.outputs});
  return parameters;
}

std::vector<TrainedParameter> trained_parameters(const AdapterSpec& spec, const ModelShape& shape) {
  return trained_parameters(spec, shape, shape);
}

std::vector<TrainedParameter> trained_parameters(const AdapterSpec& spec, const ModelShape& shape,
                                                 const ModelShape& part) {
  const auto parameters = parameters_by_path(part);
  std::vector<TrainedParameter> trained;
  if (spec.type == AdapterType::none) {
    std::ranges::transform(parameters, std::back_inserter(trained), of_model);
    return trained;
  }
  const bool inputs_first = spec_of(shape.family).inputs_first;
  const auto modules = adapted_modules(spec, shape);
  for (const auto& whole : modules) {
    const auto found = std::ranges::find_if(
        parameters, [&](const Named& p) { return p.is_matrix() && p.path == whole.path; });
    auto module = adapted(*found, inputs_first);
    module.rank = whole.rank;
    auto own = parameters_of(module, spec.type);
    const auto of_all = parameters_of(whole, spec.type);
    for (size_t i = 0; i < own.size(); ++i) {
      // What is not divided sees a part of the features, or of the gradient.
      if (own[i].shape == of_all[i].shape) own[i].division = Division::per_head;
      trained.push_back(std::move(own[i]));
    }
  }
  for (auto& parameter : trained_of_model(spec, part, parameters, modules)) {
    trained.push_back(std::move(parameter));
  }
  return trained;
}

int64_t num_trained(const AdapterSpec& spec, const ModelShape& shape) {
  int64_t sum = 0;
  for (const auto& parameter : trained_parameters(spec, shape)) sum += parameter.num_elements();
  return sum;
}

double adapter_flops_per_token(const AdapterSpec& spec, const ModelShape& shape, int64_t seq_len) {
  const double all = training_flops_per_token(shape, seq_len);
  if (spec.type == AdapterType::none) return all;
  int64_t own = 0, trained = 0;
  for (const auto& parameter : trained_parameters(spec, shape)) {
    const bool is_looked_up =
        parameter.of_embedding && (parameter.of_adapter || !shape.tie_embeddings);
    if (parameter.shape.size() < 2 || is_looked_up) continue;
    (parameter.of_adapter ? own : trained) += parameter.num_elements();
  }
  const int64_t frozen = matrix_weights(shape) - trained;
  return all - 2 * static_cast<double>(frozen) + 6 * static_cast<double>(own);
}

int64_t num_of_adapter(const AdapterSpec& spec, const ModelShape& shape) {
  int64_t sum = 0;
  for (const auto& parameter : trained_parameters(spec, shape)) {
    if (parameter.of_adapter) sum += parameter.num_elements();
  }
  return sum;
}

std::string trained_text(int64_t trained, int64_t all) {
  return fmt::format("trained parameters {} of {} ({:.4f} %)", trained, all,
                     100 * static_cast<double>(trained) / static_cast<double>(all));
}

AdapterSpec without_idle_entries(AdapterSpec spec, const ModelShape& shape) {
  const auto parameters = parameters_by_path(shape);
  const auto is_idle = [&](const std::string& member) {
    return [&parameters, member](const std::string& text) {
      const Entry entry(member, text);
      return std::ranges::none_of(
          parameters, [&](const Named& p) { return p.is_matrix() && entry.matches(p); });
    };
  };
  const auto targets = spec.targets;
  std::erase_if(spec.targets, is_idle("targets"));
  if (spec.targets.empty()) spec.targets = targets;  // an error, later
  std::erase_if(spec.exclude, is_idle("exclude"));
  PatternTable<int64_t> ranks("rank_pattern", spec.rank_pattern);
  PatternTable<double> alphas("alpha_pattern", spec.alpha_pattern);
  for (const auto& p : adapted_matrices(spec, shape, parameters)) {
    ranks.value_of(p, 0);
    alphas.value_of(p, 0);
  }
  const auto drop = [](auto& patterns, const std::vector<std::string>& idle) {
    std::erase_if(patterns,
                  [&](const auto& row) { return std::ranges::count(idle, row.first) > 0; });
  };
  drop(spec.rank_pattern, ranks.idle());
  drop(spec.alpha_pattern, alphas.idle());
  return spec;
}

std::optional<std::string> uneven_experts(const AdapterSpec& spec, const ModelShape& shape,
                                          int64_t ep) {
  if (spec.type == AdapterType::none || ep == 1) return {};
  constexpr std::string_view kExperts = ".experts.";
  const int64_t each = shape.experts.num / ep;
  std::map<std::string, std::vector<int64_t>>
      of_ranks;  // how many each has, by what follows a number
  for (const auto& parameter : trained_parameters(spec, shape)) {
    if (!parameter.of_expert) continue;
    const auto number = parameter.name.find(kExperts) + kExperts.size();
    const auto end = parameter.name.find('.', number);
    const auto expert = std::stoll(parameter.name.substr(number, end - number));
    auto& counts = of_ranks[parameter.name.substr(0, number) + "*" + parameter.name.substr(end)];
    counts.resize(static_cast<size_t>(ep));
    ++counts[static_cast<size_t>(expert / each)];
  }
  for (const auto& [name, counts] : of_ranks) {
    const auto [least, most] = std::ranges::minmax(counts);
    if (least == most) continue;
    return fmt::format(
        "{} is trained in {} experts of one rank and {} of another of parallel.ep {}; take all "
        "experts of a layer, or set parallel.ep to 1",
        name, least, most, ep);
  }
  return {};
}

}  // namespace tessera::models
