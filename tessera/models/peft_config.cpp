#include "tessera/models/peft_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/text.h"
#include "tessera/models/adapter_match.h"
#include "tessera/models/json_keys.h"

namespace tessera::models {
namespace {

using Json = nlohmann::json;
using Ordered = nlohmann::ordered_json;

/// Keys that PEFT writes, in its order, with the values that mean nothing.
Ordered usual_config() {
  return Ordered::parse(R"({
    "alora_invocation_tokens": null, "alpha_pattern": {}, "arrow_config": null,
    "auto_mapping": null, "base_model_name_or_path": null, "bias": "none", "corda_config": null,
    "ensure_weight_tying": false, "eva_config": null, "exclude_modules": null,
    "fan_in_fan_out": false, "inference_mode": true, "init_lora_weights": true,
    "kasa_config": null, "layer_replication": null, "layers_pattern": null,
    "layers_to_transform": null, "loftq_config": {}, "lora_alpha": 8, "lora_bias": false,
    "lora_dropout": 0.0, "lora_ga_config": null, "megatron_config": null,
    "megatron_core": "megatron.core", "modules_to_save": null, "monteclora_config": null,
    "peft_type": "LORA", "peft_version": "0.21.2", "qalora_group_size": 16, "r": 8,
    "rank_pattern": {}, "revision": null, "target_modules": null, "target_parameters": null,
    "task_type": "CAUSAL_LM", "trainable_token_indices": null, "use_bdlora": null,
    "use_dora": false, "use_qalora": false, "use_rslora": false, "velora_config": null})");
}

/// Keys that the spec has, and those that change nothing of a stored adapter's function: how PEFT finds
/// its classes, begins, trains, or places it.
bool is_known_or_inert(const std::string& key) {
  static const std::set<std::string_view> keys{"alpha_pattern",
                                               "auto_mapping",
                                               "base_model_name_or_path",
                                               "bias",
                                               "corda_config",
                                               "ensure_weight_tying",
                                               "eva_config",
                                               "exclude_modules",
                                               "fan_in_fan_out",
                                               "inference_mode",
                                               "init_lora_weights",
                                               "layers_pattern",
                                               "layers_to_transform",
                                               "loftq_config",
                                               "lora_alpha",
                                               "lora_dropout",
                                               "lora_ga_config",
                                               "megatron_config",
                                               "megatron_core",
                                               "modules_to_save",
                                               "peft_type",
                                               "peft_version",
                                               "qalora_group_size",
                                               "r",
                                               "rank_pattern",
                                               "revision",
                                               "runtime_config",
                                               "target_parameters",
                                               "target_modules",
                                               "task_type",
                                               "use_dora",
                                               "use_rslora",
                                               "velora_config"};
  return keys.contains(key);
}

bool says_nothing(const Json& value) { return value.is_null() || value == false || value.empty(); }

/// How the adapter began: what leaves the base as it is, or is known to us.
void read_init(const JsonKeys& keys, AdapterSpec& spec) {
  if (!keys.has("init_lora_weights") || !keys.at("init_lora_weights").is_string()) return;
  constexpr std::string_view kPissa = "pissa", kIterated = "pissa_niter_";
  const auto init = keys.text("init_lora_weights");
  int64_t iterations = 0;
  if (init.starts_with(kIterated)) {
    const auto* end = init.data() + init.size();
    const auto found = std::from_chars(init.data() + kIterated.size(), end, iterations);
    if (found.ec != std::errc() || found.ptr != end || iterations < 1) iterations = 0;
  }
  if (init == kPissa || iterations > 0) {
    spec.init = AdapterInit::pissa;
    spec.pissa_iterations = iterations;
    return;
  }
  keys.refuse_unless(
      init == "gaussian" || init == "eva" || init == "orthogonal", "init_lora_weights",
      "true, false, gaussian, eva, orthogonal, pissa or pissa_niter_N; of others that "
      "change the base: save it in PEFT with path_initial_model_for_weight_conversion");
  if (const auto same = value_named<AdapterInit>(init)) spec.init = *same;
}

void refuse_others(const JsonKeys& keys, const Json& config) {
  const auto type = keys.text("peft_type");
  keys.refuse_unless(type == "LORA", "peft_type", "LORA");
  for (const auto& [key, value] : config.items()) {
    if (is_known_or_inert(key) || says_nothing(value)) continue;
    keys.refuse_unless(false, key, "none of it");
  }
}

/// What PEFT refuses beside target_parameters.
void check_beside_parameters(const JsonKeys& keys, const PeftConfig& config) {
  if (config.target_parameters.empty()) return;
  const auto& spec = config.spec;
  keys.refuse_unless(spec.type != AdapterType::dora, "use_dora", "false beside target_parameters");
  keys.refuse_unless(spec.dropout == 0, "lora_dropout", "0 beside target_parameters");
  keys.refuse_unless(spec.init != AdapterInit::pissa, "init_lora_weights",
                     "no pissa beside target_parameters");
}

/// A text, a list of texts, or nothing.
std::vector<std::string> texts(const JsonKeys& keys, const std::string& key) {
  if (!keys.has(key)) return {};
  const auto& value = keys.at(key);
  if (value.is_string()) return {value.get<std::string>()};
  const auto is_text = [](const Json& item) { return item.is_string(); };
  if (!value.is_array() || !std::all_of(value.begin(), value.end(), is_text)) {
    keys.wrong(key, "a text or a list of texts");
  }
  return value.get<std::vector<std::string>>();
}

std::vector<int64_t> layers(const JsonKeys& keys) {
  const std::string key = "layers_to_transform";
  if (!keys.has(key)) return {};
  for (const auto& pattern : texts(keys, "layers_pattern")) {
    // These are the lists of blocks that families have.
    keys.refuse_unless(pattern == "layers" || pattern == "h", "layers_pattern", "layers or h");
  }
  const auto& value = keys.at(key);
  const auto list = value.is_array() ? value : Json::array({value});
  for (const auto& item : list) {
    if (!item.is_number_unsigned()) keys.wrong(key, "numbers of blocks");
  }
  return list.get<std::vector<int64_t>>();
}

/// In the order of the file, which counts.
template <typename T>
Patterns<T> patterns(const Ordered& config, const JsonKeys& keys, const std::string& key) {
  Patterns<T> result;
  if (!keys.has(key)) return result;
  const auto child = keys.child(key);
  for (const auto& [pattern, value] : config.at(key).items()) {
    if constexpr (std::is_integral_v<T>) {
      result.emplace_back(pattern, child.size(pattern));
    } else {
      result.emplace_back(pattern, child.positive(pattern));
    }
  }
  return result;
}

AdapterBias bias_of(const JsonKeys& keys) {
  const auto bias = value_named<AdapterBias>(keys.text("bias", "none"));
  keys.refuse_unless(bias.has_value(), "bias", "none, all or lora_only");
  return *bias;
}

double dropout_of(const JsonKeys& keys) {
  const std::string key = "lora_dropout";
  if (!keys.has(key)) return 0;
  const auto& value = keys.at(key);
  if (!value.is_number() || value.get<double>() < 0 || value.get<double>() >= 1) {
    keys.wrong(key, "a number in [0, 1)");
  }
  return value.get<double>();
}

/// A whole number without a point.
Ordered number(double value) {
  const auto whole = static_cast<int64_t>(value);
  if (static_cast<double>(whole) == value) return whole;
  return value;
}

template <typename T>
Ordered or_null(const T& value) {
  return value.empty() ? Ordered() : Ordered(value);
}

/// What follows a block's number in a parameter's path.
std::string within_block(const std::string& path, const std::string& block_prefix) {
  return path.substr(path.find('.', block_prefix.size()) + 1);
}

/// By path, what names a parameter and those of its name in other blocks; the path itself where these have
/// none, or other numbers.
std::map<std::string, std::string> parameter_names(const std::vector<PeftModule>& modules,
                                                   const ModelShape& shape) {
  const auto prefix = spec_of(shape.family).parameters(shape).block_prefix;
  std::set<std::string> all;
  for (const auto& p : parameters_by_path(shape)) {
    if (p.layer && p.is_matrix()) all.insert(p.in_tensor.empty() ? p.name() : p.in_tensor);
  }
  std::map<std::string, std::vector<const PeftModule*>> alike;
  for (const auto& module : modules) {
    if (module.is_parameter) alike[within_block(module.path, prefix)].push_back(&module);
  }
  std::map<std::string, std::string> names;
  for (const auto& entry : alike) {
    const auto& name = entry.first;
    const auto& group = entry.second;
    const auto count = std::ranges::count_if(
        all, [&](const auto& path) { return within_block(path, prefix) == name; });
    const bool same = std::ranges::all_of(group, [&](const PeftModule* module) {
      return module->rank == group.front()->rank && module->alpha == group.front()->alpha;
    });
    for (const auto* module : group) {
      names[module->path] = same && count == std::ssize(group) ? name : module->path;
    }
  }
  return names;
}

/// Names that say exactly which of the model's modules these are; else their paths.
std::vector<std::string> target_names(const std::vector<PeftModule>& modules,
                                      const ModelShape& shape) {
  std::set<std::string> names, paths;
  for (const auto& module : modules) {
    if (module.is_parameter) continue;
    paths.insert(module.path);
    names.insert(module.path.substr(module.path.rfind('.') + 1));
  }
  for (const auto& parameter : parameters_by_path(shape)) {
    if (!parameter.is_matrix() || paths.contains(parameter.stored)) continue;
    if (!names.contains(parameter.stored.substr(parameter.stored.rfind('.') + 1))) continue;
    return {paths.begin(), paths.end()};
  }
  return {names.begin(), names.end()};
}

}  // namespace

PeftConfig read_peft_config(const std::filesystem::path& adapter_config_json) {
  const auto json = read_json_object(adapter_config_json, "peft_type");
  const auto ordered = Ordered::parse(read_file(adapter_config_json));
  const JsonKeys keys(adapter_config_json.string(), json);
  refuse_others(keys, json);
  PeftConfig config{.base = keys.text("base_model_name_or_path", ""),
                    .revision = keys.text("revision", ""),
                    .keeps_tied = keys.flag("ensure_weight_tying", false)};
  config.spec = {.type = keys.flag("use_dora", false) ? AdapterType::dora : AdapterType::lora,
                 .rank = keys.size("r", 8),
                 .alpha = keys.positive("lora_alpha", 8),
                 .dropout = dropout_of(keys),
                 .rslora = keys.flag("use_rslora", false),
                 .targets = texts(keys, "target_modules"),
                 .exclude = texts(keys, "exclude_modules"),
                 .layers = layers(keys),
                 .rank_pattern = patterns<int64_t>(ordered, keys, "rank_pattern"),
                 .alpha_pattern = patterns<double>(ordered, keys, "alpha_pattern"),
                 .modules_to_save = texts(keys, "modules_to_save"),
                 .bias = bias_of(keys)};
  read_init(keys, config.spec);
  const auto parameters = texts(keys, "target_parameters");
  config.target_parameters = {parameters.begin(), parameters.end()};
  // Without a list, modules are the family's usual ones; a list that is empty is none.
  config.has_no_modules = !config.target_parameters.empty() && keys.has("target_modules") &&
                          config.spec.targets.empty();
  check_beside_parameters(keys, config);
  return config;
}

void take_target_parameters(PeftConfig& config, const ModelShape& shape) {
  if (config.target_parameters.empty()) return;
  std::set<std::string> tensors, paths;
  const auto parameters = parameters_by_path(shape);
  for (const auto& target : config.target_parameters) {
    const auto is_meant = [&](const std::string& name) {
      return name == target || name.ends_with("." + target);
    };
    bool found = false;
    for (const auto& p : parameters) {
      if (!p.layer || !p.is_matrix()) continue;
      if (!is_meant(p.in_tensor.empty() ? p.name() : p.in_tensor)) continue;
      found = true;
      if (!p.in_tensor.empty()) tensors.insert(p.in_tensor);
      paths.insert(p.in_tensor.empty() ? p.path : p.in_tensor);
    }
    if (found) continue;
    user_error(
        "adapter.target_parameters: '{}' is neither all experts of a layer "
        "(mlp.experts.gate_up_proj, mlp.experts.down_proj) nor the weight of a linear layer of "
        "this model",
        printable(target));
  }
  auto& targets = config.spec.targets;
  const auto& family = spec_of(shape.family);
  // Mixtral is the only mixture whose usual modules PEFT knows.
  const bool has_usual = shape.experts.num == 0 || family.type_of(shape) == "mixtral";
  if (targets.empty() && !config.has_no_modules && has_usual) targets = family.adapter_targets;
  targets.insert(targets.end(), paths.begin(), paths.end());
  config.target_parameters = std::move(tensors);
}

Ordered to_peft_config(const PeftConfig& config, const ModelShape& shape,
                       const std::vector<PeftModule>& modules) {
  const auto& spec = config.spec;
  auto json = usual_config();
  json["base_model_name_or_path"] = or_null(config.base);
  json["revision"] = or_null(config.revision);
  json["bias"] = text_of(spec.bias);
  json["ensure_weight_tying"] = config.keeps_tied;
  json["fan_in_fan_out"] = spec_of(shape.family).inputs_first;
  const auto parameters = parameter_names(modules, shape);
  if (spec.init != AdapterInit::kaiming && parameters.empty())
    json["init_lora_weights"] = text_of(spec.init);
  json["r"] = spec.rank;
  json["lora_alpha"] = number(spec.alpha);
  json["lora_dropout"] = spec.dropout;
  json["use_rslora"] = spec.rslora;
  json["use_dora"] = spec.type == AdapterType::dora;
  json["modules_to_save"] = or_null(spec.modules_to_save);
  json["target_modules"] = target_names(modules, shape);
  if (!parameters.empty()) {
    std::set<std::string> names;
    for (const auto& [path, name] : parameters) names.insert(name);
    json["target_parameters"] = names;
  }
  for (const auto& module : modules) {
    const auto& name = module.is_parameter ? parameters.at(module.path) : module.path;
    if (module.rank != spec.rank) json["rank_pattern"][name] = module.rank;
    if (module.alpha != spec.alpha) json["alpha_pattern"][name] = number(module.alpha);
  }
  return json;
}

}  // namespace tessera::models
