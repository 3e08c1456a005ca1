#include "tessera/checkpoint/formats/training_source.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/strict_json.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/checkpoint/formats/bitsandbytes.h"
#include "tessera/checkpoint/formats/dcp.h"
#include "tessera/checkpoint/formats/deepspeed.h"
#include "tessera/checkpoint/formats/family_names.h"
#include "tessera/checkpoint/formats/gguf/view.h"
#include "tessera/checkpoint/formats/llmc.h"
#include "tessera/checkpoint/formats/mxfp4.h"
#include "tessera/checkpoint/safetensors.h"
#include "tessera/checkpoint/write_checkpoint.h"
#include "tessera/hub/file_names.h"

namespace tessera::checkpoint {
namespace fs = std::filesystem;
namespace {

using nlohmann::json;

constexpr const char* kConfigFile = "config.json";

/// Which of a source's tensors are what.
StoredTraining sorted(const OpenedSource& opened) {
  if (opened.format == Format::dcp)
    return stored_training(dynamic_cast<const DcpSource&>(*opened.tensors));
  if (opened.format == Format::deepspeed)
    return stored_training(dynamic_cast<const DeepspeedUniversalSource&>(*opened.tensors));
  StoredTraining training;
  for (const auto& [name, info] : opened.tensors->tensors()) {
    if (!is_optimizer_state(name)) {
      training.parameters[name] = name;
      continue;
    }
    const auto rest = name.substr(kOptimizerPrefix.size());
    const size_t slash = std::min(rest.find('/'), rest.size() - 1);
    training.states[rest.substr(0, slash)][rest.substr(slash + 1)] = name;
  }
  return training;
}

/// The folder that may hold config.json and a tokenizer.
fs::path folder_of(const fs::path& path) {
  return fs::is_directory(path) ? path : path.parent_path();
}

json read_config(const TrainingOptions& options) {
  if (!options.model.is_null()) return options.model;
  auto path = options.config.empty() ? folder_of(options.source) : options.config;
  if (fs::is_directory(path)) path /= kConfigFile;
  if (options.config.empty() && !fs::exists(path)) return nullptr;
  return dequantised_config(parse_strict_json(path, read_file(path)));
}

void find_assets(const TrainingOptions& options, TrainingSource& training) {
  const auto folder = folder_of(options.config.empty() ? options.source : options.config);
  for (const auto name : hub::kTextFiles) {
    if (fs::is_regular_file(folder / name)) training.assets.push_back(folder / name);
  }
  if (!training.assets.empty()) training.assets_folder = folder;
}

/// Adds what `source` has under `names` to the view, as our models name and divide it if the
/// options ask for that; `prefix` goes before each name.
void add_named(const TrainingOptions& options, const FamilyNames& family,
               const TensorSource& source, const StoredTraining::Names& names,
               const std::string& prefix, std::optional<DType> dtype, SourceView& tensors) {
  for (const auto& [name, stored] : names) {
    if (!options.our_names) {
      tensors.add(prefix + name, source, stored, dtype);
      continue;
    }
    for (const auto& ours : family.ours(name)) {
      if (ours.part) {
        tensors.add_part(prefix + ours.name, source, stored, *ours.part, dtype);
      } else {
        tensors.add(prefix + ours.name, source, stored, dtype);
      }
    }
  }
}

/// The optimizer's `state` of each parameter, in the parameter's shape.
void add_state(const TrainingOptions& options, const FamilyNames& family,
               const TensorSource& source, const std::string& state,
               const StoredTraining::Names& names, SourceView& tensors) {
  const auto prefix = fmt::format("{}{}/", kOptimizerPrefix, state);
  SourceView states(source.path());
  add_named(options, family, source, names, prefix, std::nullopt, states);
  for (const auto& [name, info] : states.tensors()) {
    const auto parameter = name.substr(prefix.size());
    if (!tensors.contains(parameter)) {
      user_error("{}: holds {} of '{}', a parameter that {} lacks", source.path().string(), state,
                 parameter, tensors.path().string());
    }
  }
  add_named(options, family, source, names, prefix, std::nullopt, tensors);
  for (const auto& [name, info] : states.tensors()) {
    tensors.reshape(name, tensors.info(name.substr(prefix.size())).shape);
  }
}

/// Our parameters, and what an optimizer keeps of them, under Hugging Face's names: those that are
/// stored together become one.
void add_together(const TrainingOptions& options, const FamilyNames& family,
                  const TensorSource& source, SourceView& tensors) {
  for (const auto& [name, info] : source.tensors()) {
    if (!is_optimizer_state(name)) {
      add_stored(family, source, name, tensors, {.prefix = "", .dtype = options.dtype});
    } else if (options.with_optimizer) {
      const auto prefix = fmt::format("{}{}/", kOptimizerPrefix, optimizer_state(name));
      add_stored(family, source, name.substr(std::min(prefix.size(), name.size())), tensors,
                 {.prefix = prefix, .dtype = {}});
    }
  }
}

/// Gives tensors that were stored flat the shapes of the same model's weights.
void add_shapes(const TrainingOptions& options, SourceView& tensors) {
  const auto& all = tensors.tensors();
  const bool flat =
      std::ranges::all_of(all, [](const auto& t) { return t.second.shape.size() == 1; });
  if (!flat || all.empty()) return;
  if (options.config.empty() || !is_safetensors(options.config)) {
    user_error(
        "{}: its tensors have no shapes, as ZeRO-3 writes them; give a folder with weights "
        "of the same model with --config",
        options.source.string());
  }
  const Safetensors shaped(options.config);
  for (const auto& [name, info] : TensorInfos(all)) tensors.reshape(name, shaped.info(name).shape);
}

/// What train/checkpointing.h expects of another program's training.
json state_of(int64_t step, const StoredTraining& stored) {
  json state{{"step", step}};
  if (!stored.states.empty()) {
    const bool is_sgd = stored.states.contains("momentum_buffer");
    state["optimizer"] = {{"type", is_sgd ? "sgd" : "adamw"}, {"step", stored.step.value_or(step)}};
  }
  return state;
}

/// A checkpoint of ours says everything itself.
TrainingSource from_checkpoint(const TrainingOptions& options, OpenedSource opened) {
  const auto& checkpoint = dynamic_cast<const Checkpoint&>(*opened.tensors);
  TrainingSource training{.tensors = SourceView(options.source), .about = about(checkpoint)};
  training.validation_loss = checkpoint.marker().validation_loss;
  if (options.step) training.about.state["step"] = training.about.step = *options.step;
  if (!options.config.empty() || !options.model.is_null())
    training.about.model = read_config(options);
  const FamilyNames family(training.about.model, options.source.string());
  const bool together = !options.our_names && family.any_together();
  if (together) add_together(options, family, checkpoint, training.tensors);
  for (const auto& [name, info] : checkpoint.tensors()) {
    if (together) break;
    if (!is_optimizer_state(name)) {
      training.tensors.add(name, checkpoint, name, options.dtype);
    } else if (options.with_optimizer) {
      training.tensors.add(name, checkpoint, name);
    }
  }
  if (!options.with_optimizer && training.about.state.is_object()) {
    training.about.state.erase("optimizer");
  }
  training.assets = checked_assets(checkpoint);
  if (!training.assets.empty()) training.assets_folder = options.source;
  training.stored.push_back(std::move(opened));
  return training;
}

/// llama.cpp's tensors as parameters of the model that `config` says.
TrainingSource from_gguf(const TrainingOptions& options, const json& config) {
  const auto where = options.source.string();
  auto ours = std::make_unique<OursOfGguf>(options.source, llama_cpp_model(config, where));
  TrainingSource training{.tensors = SourceView(options.source)};
  const FamilyNames family(config, where);
  if (!options.our_names && family.any_together()) {
    add_together(options, family, *ours, training.tensors);
  } else {
    for (const auto& [name, info] : ours->tensors())
      training.tensors.add(name, *ours, name, options.dtype);
  }
  training.about.layout = {{"converted_from", format_name(Format::gguf)}};
  training.about.model = config;
  training.about.step = options.step.value_or(0);
  training.about.state = state_of(training.about.step, {});
  training.stored.push_back({Format::gguf, std::move(ours)});
  find_assets(options, training);
  return training;
}

/// Are there weights of codes, which transformers has the other way around as floats?
bool turns_weights(const OpenedSource& opened) {
  return std::ranges::any_of(opened.tensors->tensors(), [](const auto& tensor) {
    return was_mxfp4(tensor.first, tensor.second);
  });
}

/// A source's parameters as our models divide them.
std::unique_ptr<TensorSource> divided(TrainingOptions options, const FamilyNames& family,
                                      const OpenedSource& opened, const StoredTraining& stored) {
  options.our_names = true;
  auto ours = std::make_unique<SourceView>(options.source);
  add_named(options, family, *opened.tensors, stored.parameters, "", std::nullopt, *ours);
  return ours;
}

TrainingSource from_others(const TrainingOptions& options, OpenedSource opened) {
  const auto* llmc = dynamic_cast<const LlmcSource*>(opened.tensors.get());
  TrainingSource training{.tensors = SourceView(options.source)};
  const auto config =
      llmc != nullptr && options.config.empty() ? gpt2_config(llmc->shape()) : read_config(options);
  if (opened.format == Format::safetensors) {
    check_tied_head(config, *opened.tensors);
  }
  auto stored = sorted(opened);
  const bool turns = !options.our_names && turns_weights(opened);
  const FamilyNames family(options.our_names || turns ? config : json(), options.source.string());
  if (turns && family.any_together()) {
    training.stored.push_back({opened.format, divided(options, family, opened, stored)});
    add_together(options, family, *training.stored.back().tensors, training.tensors);
  } else {
    add_named(options, family, *opened.tensors, stored.parameters, "", options.dtype,
              training.tensors);
  }
  if (opened.format == Format::deepspeed) add_shapes(options, training.tensors);
  training.about.layout = {{"converted_from", format_name(opened.format)}};
  training.about.model = config;
  training.stored.push_back(std::move(opened));
  if (options.with_optimizer && !options.optimizer.empty()) {
    training.stored.push_back(open_with_format(options.optimizer));
    stored = sorted(training.stored.back());
  }
  if (options.with_optimizer) {
    const auto& states_from = *training.stored.back().tensors;
    for (const auto& [state, names] : stored.states)
      add_state(options, family, states_from, state, names, training.tensors);
  }
  training.about.step = options.step.value_or(stored.step.value_or(0));
  training.about.state = state_of(training.about.step, stored);
  find_assets(options, training);
  return training;
}

}  // namespace

TrainingSource open_training(const TrainingOptions& options) {
  if (const auto folders = dcp_folders(options.source)) {
    auto inner = options;
    inner.source = folders->model;
    if (options.optimizer.empty()) inner.optimizer = folders->optimizer;
    if (options.config.empty() && fs::exists(options.source / kConfigFile))
      inner.config = options.source / kConfigFile;
    return open_training(inner);
  }
  auto opened = open_with_format(options.source);
  if (opened.format == Format::gguf) {
    const auto config = read_config(options);
    if (config.is_object()) return from_gguf(options, config);
  }
  return opened.format == Format::tessera ? from_checkpoint(options, std::move(opened))
                                          : from_others(options, std::move(opened));
}

}  // namespace tessera::checkpoint
