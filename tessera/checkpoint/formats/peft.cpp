#include "tessera/checkpoint/formats/peft.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/checkpoint/convert_dtype.h"
#include "tessera/checkpoint/formats/family_names.h"
#include "tessera/checkpoint/formats/floats_of.h"
#include "tessera/checkpoint/formats/write_tensor.h"
#include "tessera/checkpoint/held_matrices.h"
#include "tessera/checkpoint/pending_folder.h"
#include "tessera/models/hf_config.h"

namespace tessera::checkpoint {
namespace fs = std::filesystem;
namespace {

using models::AdaptedModule;
using models::AdapterType;
using models::ModelShape;
using models::TrainedParameter;

constexpr std::string_view kPrefix = "base_model.model.";

FamilyNames names_of(const ModelShape& shape) {
  return {nlohmann::json(models::to_hf_config(shape)), "the model"};
}

/// Where files have a module: by itself, or some rows of another.
struct Place {
  std::string module;
  int64_t first_row = 0, rows = 0;  ///< rows 0: by itself

  bool is_part() const { return rows > 0; }
};

/// UserError: a part of a tensor in which it is no rows of a matrix.
Place place_of(const FamilyNames& names, const std::string& module) {
  const auto weight = module + ".weight", stored = names.stored(weight);
  if (stored == weight) return {module};
  for (const auto& [name, part] : names.ours(stored)) {
    if (name != weight || !part) continue;
    if (part->of.size() != 2) {
      user_error(
          "adapter: {} is a part of '{}' in files, where PEFT's adapters have no name for a single "
          "expert; leave experts out of targets and modules_to_save",
          module, stored);
    }
    return {stored.substr(0, stored.rfind('.')), part->offset / part->strides.front(),
            part->shape.front()};
  }
  return {module};
}

/// A parameter's module, and what follows: ".lora_A".
std::pair<std::string, std::string> split(const std::string& name) {
  const auto dot = name.rfind('.');
  return {name.substr(0, dot), name.substr(dot)};
}

/// PEFT's key of what follows a module's path.
std::string key_of(const std::string& module, const std::string& rest) {
  const bool is_module = rest == ".lora_A" || rest == ".lora_B";
  return fmt::format("{}{}{}{}", kPrefix, module, rest, is_module ? ".weight" : "");
}

/// As key_of, of a parameter of the model itself; of a module with an adapter under its "base_layer".
std::string stored_key(const TensorSource& stored, const Place& place, const std::string& rest,
                       bool of_adapter) {
  const auto inner = key_of(place.module + ".base_layer", rest);
  return !of_adapter && stored.contains(inner) ? inner : key_of(place.module, rest);
}

/// What PEFT saves beside an adapter of a table, whole: the base's values.
bool is_copy_of_base(const std::string& key, const TensorInfo& info, const ModelShape& shape) {
  auto name = key.substr(std::min(key.size(), kPrefix.size()));
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

models::PeftConfig config_in(const fs::path& folder, const ModelShape& shape) {
  if (!is_peft(folder)) {
    user_error("{}: no adapter; expected a folder with {} and {}", folder.string(), kPeftConfig,
               kPeftWeights);
  }
  auto config = models::read_peft_config(folder / kPeftConfig);
  try {
    config.spec = models::without_idle_entries(std::move(config.spec), shape);
    models::trained_parameters(config.spec, shape);
  } catch (const UserError& error) {
    throw UserError(in_words_of_peft(folder / kPeftConfig, error.what()));
  }
  check_tied(config, shape, folder / kPeftConfig);
  return config;
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
  const auto names = names_of(shape);
  std::set<std::string> used;
  for (const auto& parameter : models::trained_parameters(config_.spec, shape)) {
    const auto [module, rest] = split(parameter.name);
    const auto place = place_of(names, module);
    const auto key = stored_key(stored_, place, rest, parameter.of_adapter);
    if (!stored_.contains(key)) {
      user_error(
          "{}: expected a tensor '{}', which its settings and this model ask for, found none",
          stored_.path().string(), key);
    }
    used.insert(key);
    if (place.is_part() && rest != ".lora_A") {
      tensors_.add_rows(parameter.name, stored_, key, {place.first_row, place.rows});
    } else {
      tensors_.add(parameter.name, stored_, key);
    }
    const auto& info = tensors_.info(parameter.name);
    if (info.shape != parameter.shape || !is_float(info.dtype)) {
      user_error(
          "{}: '{}': expected shape [{}] and floats, got [{}] of {}: it is an adapter of "
          "another model",
          stored_.path().string(), key, fmt::join(parameter.shape, ", "),
          fmt::join(info.shape, ", "), dtype_name(info.dtype));
    }
  }
  for (const auto& [key, info] : stored_.tensors()) {
    if (used.contains(key) || is_copy_of_base(key, info, shape)) continue;
    user_error("{}: '{}' [{}] is of no module that its settings name in this model",
               stored_.path().string(), key, fmt::join(info.shape, ", "));
  }
}

namespace {

/// A part of a fused module with its rows there.
struct Part {
  AdaptedModule module;
  Place place;
};

/// What is written, under PEFT's keys, and by which settings.
class Writer {
 public:
  Writer(const TensorSource& trained, const ModelShape& shape, const models::PeftConfig& config)
      : trained_(trained),
        shape_(shape),
        names_(names_of(shape)),
        config_(config),
        view_("the adapter") {
    std::map<std::string, std::vector<Part>> fused;
    for (const auto& module : models::adapted_modules(config.spec, shape)) {
      adapted_.insert(module.path);
      const auto place = place_of(names_, module.path);
      if (place.is_part()) {
        fused[place.module].push_back({module, place});
        continue;
      }
      modules_.push_back({module.path, module.rank, module.alpha});
      for (const auto& p : models::parameters_of(module, config.spec.type)) add(p, place.module);
    }
    for (const auto& [path, parts] : fused) fuse(path, parts);
    for (const auto& p : models::trained_parameters(config.spec, shape)) {
      if (!p.of_adapter) add_of_model(p);
    }
    name_saved_modules();
  }

  const SourceView& tensors() const { return view_; }
  nlohmann::ordered_json config() const {
    return models::to_peft_config(config_, shape_, modules_);
  }

 private:
  void check(const TrainedParameter& parameter) const {
    const auto& found = trained_.info(parameter.name).shape;
    if (found == parameter.shape) return;
    user_error("{}: '{}': expected shape [{}], got [{}]", trained_.path().string(), parameter.name,
               fmt::join(parameter.shape, ", "), fmt::join(found, ", "));
  }

  void add(const TrainedParameter& parameter, const std::string& module) {
    check(parameter);
    view_.add(key_of(module, split(parameter.name).second), trained_, parameter.name);
  }

  void add_of_model(const TrainedParameter& parameter) {
    check(parameter);
    const auto [module, rest] = split(parameter.name);
    const auto place = place_of(names_, module);
    if (!place.is_part()) {
      const auto inner = adapted_.contains(module) ? module + ".base_layer" : module;
      view_.add(key_of(inner, rest), trained_, parameter.name);
      return;
    }
    const auto key = key_of(place.module, rest);
    const int64_t rows = view_.contains(key) ? view_.info(key).shape[0] : 0;
    if (rows != place.first_row) refuse_part(place.module, "modules_to_save", module);
    view_.append_rows(key, trained_, parameter.name);
    saved_rows_[place.module] = rows + place.rows;
  }

  [[noreturn]] static void refuse_part(const std::string& module, const char* setting,
                                       const std::string& part) {
    user_error("{}: {} is a part of {} in files, where it cannot stand alone; name all of it",
               setting, part, module);
  }

  /// Rows of a fused module.
  int64_t rows_of(const std::string& module) const {
    int64_t rows = 0;
    for (const auto& [name, part] : names_.ours(module + ".weight")) {
      if (part) rows += part->shape.front();
    }
    return rows;
  }

  /// One adapter of several: their A one below the other, their B block by block. Scales that differ
  /// go into B.
  void fuse(const std::string& path, const std::vector<Part>& parts) {
    int64_t rank = 0;
    for (const auto& part : parts) rank += part.module.rank;
    const int64_t outputs = rows_of(path), inputs = parts.front().module.inputs;
    std::vector<float> a, b(static_cast<size_t>(outputs * rank)), magnitudes;
    const double scale = parts.front().module.scale;
    int64_t column = 0;
    for (const auto& [module, place] : parts) {
      for (const auto& p : models::parameters_of(module, config_.spec.type)) check(p);
      const auto part_a = floats_of(trained_, module.path + ".lora_A");
      const auto part_b = floats_of(trained_, module.path + ".lora_B");
      a.insert(a.end(), part_a.begin(), part_a.end());
      for (int64_t row = 0; row < place.rows; ++row) {
        for (int64_t k = 0; k < module.rank; ++k) {
          const float value = part_b[static_cast<size_t>(row * module.rank + k)];
          b[static_cast<size_t>((place.first_row + row) * rank + column + k)] =
              module.scale == scale ? value : static_cast<float>(value * module.scale / scale);
        }
      }
      column += module.rank;
      if (config_.spec.type != AdapterType::dora) continue;
      if (std::ssize(magnitudes) != place.first_row) refuse_part(path, "targets", module.path);
      const auto more = floats_of(trained_, module.path + ".lora_magnitude_vector");
      magnitudes.insert(magnitudes.end(), more.begin(), more.end());
    }
    hold(key_of(path, ".lora_A"), {rank, inputs}, std::move(a));
    hold(key_of(path, ".lora_B"), {outputs, rank}, std::move(b));
    if (config_.spec.type == AdapterType::dora) {
      if (std::ssize(magnitudes) != outputs) refuse_part(path, "targets", parts.back().module.path);
      hold(key_of(path, ".lora_magnitude_vector"), {outputs}, std::move(magnitudes));
    }
    const auto width = static_cast<double>(rank);
    const bool alike = parts.size() == 1;
    const double alpha = scale * (config_.spec.rslora ? std::sqrt(width) : width);
    modules_.push_back({path, rank, alike ? parts.front().module.alpha : alpha});
  }

  void hold(const std::string& key, std::vector<int64_t> shape, std::vector<float> values) {
    held_.add(key, std::move(shape), std::move(values));
    view_.add(key, held_, key);
  }

  /// modules_to_save by the names that files have.
  void name_saved_modules() {
    for (const auto& [module, rows] : saved_rows_) {
      if (rows != rows_of(module)) refuse_part(module, "modules_to_save", "what it names");
    }
    std::vector<std::string> saved;
    for (auto name : config_.spec.modules_to_save) {
      for (const auto& [module, rows] : saved_rows_) {
        const auto parts = names_.ours(module + ".weight");
        const bool is_part = std::ranges::any_of(
            parts, [&](const auto& part) { return split(part.name).first.ends_with(name); });
        if (is_part) name = module.substr(module.rfind('.') + 1);
      }
      if (std::ranges::count(saved, name) == 0) saved.push_back(name);
    }
    config_.spec.modules_to_save = saved;
  }

  const TensorSource& trained_;
  const ModelShape& shape_;
  FamilyNames names_;
  models::PeftConfig config_;
  HeldMatrices held_{"fused adapters"};
  SourceView view_;
  std::set<std::string> adapted_;
  std::vector<models::PeftModule> modules_;
  std::map<std::string, int64_t> saved_rows_;  // of fused modules that are trained whole
};

}  // namespace

void write_peft(const TensorSource& trained, const ModelShape& shape, const fs::path& destination,
                const PeftWriteOptions& options) {
  auto config = options.config;
  config.keeps_tied = shape.tie_embeddings && !config.spec.modules_to_save.empty();
  const Writer writer(trained, shape, config);
  std::vector<std::pair<std::string, TensorInfo>> tensors;
  for (auto [name, info] : writer.tensors().tensors()) {
    if (options.dtype) info.dtype = *options.dtype;
    tensors.emplace_back(name, info);
  }
  PendingFolder folder(destination);
  write_safetensors(writer.tensors(), std::move(tensors), folder.path() / kPeftWeights,
                    {{"format", "pt"}});
  write_file(folder.path() / kPeftConfig, writer.config().dump(2) + "\n");
  folder.commit();
}

}  // namespace tessera::checkpoint
