#include "tessera/checkpoint/formats/peft.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/checkpoint/convert_dtype.h"
#include "tessera/checkpoint/formats/peft_experts.h"
#include "tessera/checkpoint/formats/peft_names.h"
#include "tessera/models/adapter_match.h"

namespace tessera::checkpoint {
namespace fs = std::filesystem;
namespace {

using models::ModelShape;
using models::TrainedParameter;

/// Like peft_key, for a parameter of the model itself; if its module has an adapter, it is under "base_layer".
std::string stored_key(const TensorSource& stored, const PeftPlace& place, const std::string& rest,
                       bool of_adapter) {
  const auto inner = peft_key(place.module + ".base_layer", rest);
  return !of_adapter && stored.contains(inner) ? inner : peft_key(place.module, rest);
}

/// What PEFT saves beside an adapter of a table, whole: the base's values.
bool is_copy_of_base(const std::string& key, const TensorInfo& info, const ModelShape& shape) {
  auto name = key.substr(std::min(key.size(), kPeftPrefix.size()));
  constexpr std::string_view kInner = ".base_layer.weight";
  if (name.ends_with(kInner)) name = name.substr(0, name.size() - kInner.size()) + ".weight";
  const auto specs = models::spec_of(shape.family).parameters(shape);
  auto tables = specs.embedding;
  tables.insert(tables.end(), specs.head.begin(), specs.head.end());
  tables.push_back({"lm_head.weight", {shape.vocab_size, shape.dim}});
  return std::ranges::any_of(tables, [&](const models::ParameterSpec& table) {
    return table.shape.size() == 2 && table.name == name && table.shape == info.shape;
  });
}

void check_tied(const models::PeftConfig& config, const ModelShape& shape, const fs::path& file) {
  if (!shape.tie_embeddings || config.keeps_tied) return;
  for (const auto& parameter : models::trained_parameters(config.spec, shape)) {
    if (parameter.of_adapter || !parameter.of_embedding || parameter.shape[0] != shape.vocab_size)
      continue;
    user_error(
        "{}: modules_to_save: the model's head and embedding are one table, of which this adapter "
        "trained a copy; train it with ensure_weight_tying, or beside a model of two tables",
        file.string());
  }
}

fs::path weights_in(const fs::path& folder) {
  const auto weights = folder / kPeftWeights;
  if (fs::exists(weights)) return weights;
  if (fs::exists(folder / "adapter_model.bin")) {
    user_error(
        "{}: expected {}; an adapter_model.bin is not read: load it in PEFT and save it again "
        "(save_pretrained)",
        folder.string(), kPeftWeights);
  }
  user_error("{}: expected {} beside {}, found none", folder.string(), kPeftWeights, kPeftConfig);
}

/// An error about settings that a file of PEFT's made, with that file and its names for them.
std::string in_words_of_peft(const fs::path& file, std::string message) {
  static const std::map<std::string, std::string> names{{"rank", "r"},
                                                        {"alpha", "lora_alpha"},
                                                        {"targets", "target_modules"},
                                                        {"exclude", "exclude_modules"},
                                                        {"layers", "layers_to_transform"},
                                                        {"init", "init_lora_weights"}};
  constexpr std::string_view kSection = "adapter.";
  for (size_t at = message.find(kSection); at != std::string::npos;
       at = message.find(kSection, at)) {
    message.erase(at, kSection.size());
    const auto end = message.find_first_not_of("abcdefghijklmnopqrstuvwxyz_", at);
    const auto name = names.find(message.substr(at, end - at));
    if (name != names.end()) message.replace(at, name->first.size(), name->second);
  }
  return fmt::format("{}: {}", file.string(), message);
}

/// PEFT takes no module out of target_parameters.
void check_tensors_whole(const models::PeftConfig& config, const ModelShape& shape) {
  std::set<std::string> adapted;
  for (const auto& module : models::adapted_modules(config.spec, shape))
    adapted.insert(module.path);
  for (const auto& p : models::parameters_by_path(shape)) {
    if (!config.target_parameters.contains(p.in_tensor) || adapted.contains(p.path)) continue;
    user_error(
        "adapter.target_parameters: {} is in {}, and exclude_modules or modules_to_save take it "
        "out, "
        "which PEFT does not; change them so that they do not match it",
        p.path, p.in_tensor);
  }
}

models::PeftConfig config_in(const fs::path& folder, const ModelShape& shape) {
  if (!is_peft(folder)) {
    user_error("{}: no adapter; expected a folder with {} and {}", folder.string(), kPeftConfig,
               kPeftWeights);
  }
  auto config = models::read_peft_config(folder / kPeftConfig);
  try {
    models::take_target_parameters(config, shape);
    config.spec = models::without_idle_entries(std::move(config.spec), shape);
    models::trained_parameters(config.spec, shape);
    check_tensors_whole(config, shape);
  } catch (const UserError& error) {
    throw UserError(in_words_of_peft(folder / kPeftConfig, error.what()));
  }
  check_tied(config, shape, folder / kPeftConfig);
  return config;
}

/// Adds to `view` an adapter's or the model's parameter that stands by itself, or in rows of another.
void add_of_module(SourceView& view, const TrainedParameter& parameter,
                   const SafetensorsFile& stored, const std::string& key, const PeftPlace& place) {
  if (place.is_part() && !parameter.name.ends_with(".lora_A")) {
    view.add_rows(parameter.name, stored, key, {place.first_row, place.rows});
  } else {
    view.add(parameter.name, stored, key);
  }
  const auto& info = view.info(parameter.name);
  if (info.shape == parameter.shape && is_float(info.dtype)) return;
  user_error(
      "{}: '{}': expected shape [{}] and floats, got [{}] of {}: it is an adapter of "
      "another model",
      stored.path().string(), key, fmt::join(parameter.shape, ", "), fmt::join(info.shape, ", "),
      dtype_name(info.dtype));
}

}  // namespace

bool is_peft(const fs::path& folder) { return fs::exists(folder / kPeftConfig); }

void refuse_changed_base(const PeftAdapter& adapter) {
  if (adapter.config().spec.init != models::AdapterInit::pissa) return;
  user_error(
      "{}: init_lora_weights: pissa: its base is not the model's, but what PiSSA left of it; save "
      "it in PEFT with path_initial_model_for_weight_conversion, or train on from it and merge "
      "that run",
      (adapter.folder() / kPeftConfig).string());
}

PeftAdapter::PeftAdapter(const fs::path& folder, const ModelShape& shape)
    : folder_(folder),
      config_(config_in(folder, shape)),
      stored_(weights_in(folder)),
      tensors_(folder) {
  const auto& of_experts = config_.target_parameters;
  const auto names = family_names_of(shape);
  const auto experts = expert_places(names, shape);
  std::set<std::string> used;
  for (const auto& parameter : models::trained_parameters(config_.spec, shape)) {
    const auto [module, rest] = split_parameter(parameter.name);
    const auto expert = experts.find(module);
    const bool in_tensor = parameter.of_adapter && expert != experts.end() &&
                           of_experts.contains(expert->second.tensor);
    const auto place = peft_place(names, module);
    const auto key = in_tensor ? expert_key(expert->second.tensor, rest, of_experts)
                               : stored_key(stored_, place, rest, parameter.of_adapter);
    if (!stored_.contains(key)) {
      user_error(
          "{}: expected a tensor '{}', which its settings and this model ask for, found none",
          stored_.path().string(), key);
    }
    used.insert(key);
    if (in_tensor) {
      add_of_expert(tensors_, parameter, expert->second, stored_, key);
    } else {
      add_of_module(tensors_, parameter, stored_, key, place);
    }
  }
  for (const auto& [key, info] : stored_.tensors()) {
    if (used.contains(key) || is_copy_of_base(key, info, shape)) continue;
    user_error("{}: '{}' [{}] is of no module that its settings name in this model",
               stored_.path().string(), key, fmt::join(info.shape, ", "));
  }
}

}  // namespace tessera::checkpoint
