#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/checkpoint/formats/family_names.h"
#include "tessera/checkpoint/formats/floats_of.h"
#include "tessera/checkpoint/formats/peft.h"
#include "tessera/checkpoint/formats/peft_experts.h"
#include "tessera/checkpoint/formats/peft_joined.h"
#include "tessera/checkpoint/formats/peft_names.h"
#include "tessera/checkpoint/formats/write_tensor.h"
#include "tessera/checkpoint/held_matrices.h"
#include "tessera/checkpoint/pending_folder.h"

namespace tessera::checkpoint {
namespace fs = std::filesystem;
namespace {

using models::AdaptedModule;
using models::AdapterType;
using models::ModelShape;
using models::TrainedParameter;

/// A part of a fused module with its rows there.
struct Part {
  AdaptedModule module;
  PeftPlace place;
};

/// What is written, under PEFT's keys, and by which settings.
class Writer {
 public:
  Writer(const TensorSource& trained, const ModelShape& shape, const PeftWriteOptions& options)
      : trained_(trained),
        shape_(shape),
        names_(family_names_of(shape)),
        config_(options.config),
        view_("the adapter"),
        fuses_experts_(shape.experts.num > 0 && options.experts == models::ExpertFormat::fused) {
    config_.keeps_tied = shape.tie_embeddings && !config_.spec.modules_to_save.empty();
    std::map<std::string, std::vector<Part>> fused;
    std::map<std::string, std::vector<AdaptedModule>> of_experts;
    const auto experts = expert_places(names_, shape);
    for (const auto& module : models::adapted_modules(config_.spec, shape)) {
      adapted_.insert(module.path);
      const auto place = peft_place(names_, module.path);
      if (fuses_experts_ && module.of_expert) {
        of_experts[experts.at(module.path).tensor].push_back(module);
      } else if (place.is_part()) {
        fused[place.module].push_back({module, place});
      } else {
        add_module(module);
      }
    }
    for (const auto& [path, parts] : fused) fuse(path, parts);
    for (const auto& [tensor, modules] : of_experts) tensors_.insert(tensor);
    for (const auto& [tensor, modules] : of_experts) fuse_experts(tensor, modules, experts);
    for (const auto& p : models::trained_parameters(config_.spec, shape)) {
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

  void add_module(const AdaptedModule& module) {
    // PEFT takes an expert's name among target_modules for all experts, and a module of that name with it.
    const auto& spec = config_.spec;
    const bool as_parameter = fuses_experts_ && module.layer && is_named_as_expert(module.path) &&
                              spec.type != AdapterType::dora && spec.dropout == 0;
    const auto* ending = as_parameter ? ".weight" : "";
    modules_.push_back({module.path + ending, module.rank, module.alpha, as_parameter});
    for (const auto& p : models::parameters_of(module, spec.type)) {
      check(p);
      view_.add(peft_key(module.path, split_parameter(p.name).second), trained_, p.name);
    }
  }

  bool is_named_as_expert(const std::string& path) const {
    const auto& names = models::spec_of(shape_.family).mixture(shape_);
    return std::ranges::any_of(std::array{names.gate, names.up, names.down},
                               [&](const auto& name) { return path.ends_with("." + name); });
  }

  /// What to do where all experts together cannot be written.
  std::string otherwise() const {
    return models::spec_of(shape_.family).mixture(shape_).alternating
               ? "merge the adapter (tessera merge-adapter)"
               : "set expert_format to per_expert";
  }

  void fuse_experts(const std::string& tensor, const std::vector<AdaptedModule>& modules,
                    const std::map<std::string, ExpertPlace>& experts) {
    if (config_.spec.type == AdapterType::dora) {
      user_error("DoRA of {}: PEFT has LoRA alone of all experts together; {}", tensor,
                 otherwise());
    }
    for (const auto& module : modules) {
      for (const auto& p : models::parameters_of(module, config_.spec.type)) check(p);
    }
    const auto adapter = std::make_shared<const ExpertAdapter>(
        expert_adapter(modules, experts, config_.spec.rslora, otherwise()));
    const auto& place = adapter->places.front();
    const int64_t all = adapter->rank * place.num_experts;
    compute(expert_key(tensor, ".lora_A", tensors_), {all, place.inputs},
            [adapter, this] { return adapter->a(trained_); });
    compute(expert_key(tensor, ".lora_B", tensors_), {place.outputs, all},
            [adapter, this] { return adapter->b(trained_); });
    modules_.push_back({tensor, adapter->rank, adapter->alpha, /*is_parameter=*/true});
  }

  void compute(const std::string& key, std::vector<int64_t> shape,
               ComputedMatrices::Compute values) {
    computed_.add(key, std::move(shape), std::move(values));
    view_.add(key, computed_, key);
  }

  void add_of_model(const TrainedParameter& parameter) {
    check(parameter);
    const auto [module, rest] = split_parameter(parameter.name);
    if (parameter.of_expert &&
        (fuses_experts_ || names_.stored(parameter.name) != parameter.name)) {
      user_error(
          "adapter: {} is a part of a tensor of all experts, which PEFT's files have no place for "
          "beside an adapter; leave experts out of modules_to_save and bias, or {}",
          parameter.name, otherwise());
    }
    const auto place = peft_place(names_, module);
    if (!place.is_part()) {
      const auto inner = adapted_.contains(module) ? module + ".base_layer" : module;
      view_.add(peft_key(inner, rest), trained_, parameter.name);
      if (config_.keeps_tied && parameter.name == table_name())
        view_.add(peft_key("lm_head", rest), trained_, parameter.name);
      return;
    }
    const auto key = peft_key(place.module, rest);
    const int64_t rows = view_.contains(key) ? view_.info(key).shape[0] : 0;
    if (rows != place.first_row) refuse_part(place.module, "modules_to_save", module);
    view_.append_rows(key, trained_, parameter.name);
    saved_rows_[place.module] = rows + place.rows;
  }

  /// The embeddings', which a tied head shares: PEFT has it under both names.
  std::string table_name() const {
    return models::spec_of(shape_.family).parameters(shape_).embedding.front().name;
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
    for (const auto& part : parts) {
      const auto& [module, place] = part;
      for (const auto& p : models::parameters_of(module, config_.spec.type)) check(p);
      const auto part_a = floats_of(trained_, module.path + ".lora_A");
      a.insert(a.end(), part_a.begin(), part_a.end());
      const auto index = [&](int64_t row, int64_t k) {
        return static_cast<size_t>((part.place.first_row + row) * rank + column + k);
      };
      put_b(trained_, module, scale, index, b);
      column += module.rank;
      if (config_.spec.type != AdapterType::dora) continue;
      if (std::ssize(magnitudes) != place.first_row) refuse_part(path, "targets", module.path);
      const auto more = floats_of(trained_, module.path + ".lora_magnitude_vector");
      magnitudes.insert(magnitudes.end(), more.begin(), more.end());
    }
    hold(peft_key(path, ".lora_A"), {rank, inputs}, std::move(a));
    hold(peft_key(path, ".lora_B"), {outputs, rank}, std::move(b));
    if (config_.spec.type == AdapterType::dora) {
      if (std::ssize(magnitudes) != outputs) refuse_part(path, "targets", parts.back().module.path);
      hold(peft_key(path, ".lora_magnitude_vector"), {outputs}, std::move(magnitudes));
    }
    const double alpha = joined_alpha(parts.front().module, rank, config_.spec.rslora);
    modules_.push_back({path, rank, alpha, /*is_parameter=*/false});
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
        const bool is_part = std::ranges::any_of(parts, [&](const auto& part) {
          return split_parameter(part.name).first.ends_with(name);
        });
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
  ComputedMatrices computed_{"adapters of experts"};
  SourceView view_;
  std::set<std::string> adapted_;
  std::vector<models::PeftModule> modules_;
  bool fuses_experts_;
  std::set<std::string> tensors_;              // of all experts, with an adapter
  std::map<std::string, int64_t> saved_rows_;  // of fused modules that are trained whole
};

}  // namespace

void check_expert_format(models::ExpertFormat format, const ModelShape& shape) {
  if (format != models::ExpertFormat::per_expert) return;
  const auto& family = models::spec_of(shape.family);
  if (shape.experts.num == 0) {
    user_error("expert_format: is for mixtures, and a {} has no experts; leave it out",
               family.type_of(shape));
  }
  if (!family.mixture(shape).alternating) return;
  user_error("expert_format: expected fused for a {}, whose files have no single experts",
             family.type_of(shape));
}

void write_peft(const TensorSource& trained, const ModelShape& shape, const fs::path& destination,
                const PeftWriteOptions& options) {
  const Writer writer(trained, shape, options);
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
