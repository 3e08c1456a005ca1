#include "tessera/train/job_adapter.h"

#include <algorithm>
#include <filesystem>
#include <string>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/checkpoint/formats/merge_adapter.h"
#include "tessera/checkpoint/formats/peft.h"
#include "tessera/checkpoint/tensors.h"
#include "tessera/models/adapter_match.h"
#include "tessera/train/pissa.h"
#include "tessera/train/resume.h"

namespace tessera::train {
namespace fs = std::filesystem;
namespace {

using checkpoint::AdapterPart;
using checkpoint::PeftAdapter;
using checkpoint::TensorSource;
using models::FirstValues;

/// First values of a model's own parameters, as a source of tensors.
class FilledSource : public TensorSource {
 public:
  FilledSource(const models::ModelShape& shape, FirstValues fill)
      : TensorSource("model.path"), fill_(std::move(fill)) {
    for (const auto& parameter : models::parameters_by_path(shape)) {
      tensors_[parameter.name()] = {checkpoint::DType::f32, parameter.shape};
    }
  }

 private:
  void read_part(const std::string& name, const checkpoint::TensorInfo& /*info*/, int64_t begin,
                 std::span<std::byte> destination) const override {
    const auto count = std::ssize(destination) / static_cast<int64_t>(sizeof(float));
    fill_(name, begin, torch::from_blob(destination.data(), {count}, torch::kFloat32));
  }

  FirstValues fill_;
};

/// `values` with the parts in them.
FirstValues with_parts(const models::ModelShape& shape, FirstValues values,
                       const std::vector<AdapterPart>& parts) {
  const auto source = checkpoint::with_parts(
      std::make_shared<FilledSource>(shape, std::move(values)), parts, shape);
  return [source](const std::string& name, int64_t begin, const torch::Tensor& part) {
    checkpoint::read_into(*source, name, begin, part);
  };
}

std::shared_ptr<const PeftAdapter> open_base(const std::string& folder,
                                             const models::ModelShape& shape) {
  auto adapter = std::make_shared<const PeftAdapter>(folder, shape);
  checkpoint::refuse_changed_base(*adapter);
  return adapter;
}

/// Where a run that is resumed keeps what it began with; empty: the run begins.
fs::path kept_initial(const config::RunConfig& config) {
  const auto& wish = config.checkpoint.resume;
  if (wish == "none") return {};
  auto folder = wish == "auto" ? checkpoint_folder(config) : fs::path(wish);
  if (checkpoint::is_checkpoint(folder)) {
    folder /= "..";
  } else if (checkpoint::step_folders(folder).empty()) {
    return {};
  }
  folder = (folder / checkpoint::kInitialAdapter).lexically_normal();
  if (!checkpoint::is_peft(folder)) {
    user_error(
        "checkpoint.resume: {}: expected the adapter that the run began with beside its "
        "checkpoints, found none: put it back, or start anew",
        folder.string());
  }
  return folder;
}

/// Are these the A and B of `spec`? Not where files fuse modules, of which an adapter was made one.
bool has_its_shapes(const AdapterPart& initial, const models::AdapterSpec& spec,
                    const models::ModelShape& shape) {
  return std::ranges::all_of(
      models::trained_parameters(spec, shape), [&](const models::TrainedParameter& parameter) {
        return !initial.tensors->contains(parameter.name) ||
               initial.tensors->info(parameter.name).shape == parameter.shape;
      });
}

/// What is stored and merged, but not trained: an adapter beside the head, whose logits never exist
/// whole, and magnitudes of a table.
void check_trainable(const models::AdapterSpec& spec, const models::ModelShape& shape) {
  for (const auto& module : models::adapted_modules(spec, shape)) {
    if (module.embedding && spec.type == models::AdapterType::dora) {
      user_error(
          "adapter.type: dora is for linear layers, and {} is a table; set lora, or leave it out "
          "of "
          "adapter.targets",
          module.path);
    }
    if (!module.embedding && !module.layer) {
      user_error(
          "adapter.targets: {}: no adapter is trained beside the head; leave it out, name it in "
          "adapter.modules_to_save to train it whole, or merge a stored one (tessera "
          "merge-adapter)",
          module.path);
    }
  }
}

}  // namespace

JobAdapter adapter_of(const config::RunConfig& config, const models::ModelShape& shape) {
  const auto& section = config.adapter;
  JobAdapter result{.spec = section, .seed = config.model.seed};
  checkpoint::check_expert_format(section.expert_format, shape);
  for (const auto& folder : section.base) {
    const auto below = open_base(folder, shape);
    result.below.push_back({.spec = below->config().spec, .tensors = {below, &below->tensors()}});
  }
  if (section.path.empty()) {
    check_trainable(result.spec, shape);
    return result;
  }
  const auto stored = std::make_shared<const PeftAdapter>(section.path, shape);
  result.spec = stored->config().spec;
  result.stored = {stored, &stored->tensors()};
  if (result.spec.type != section.type) {
    user_error("adapter.path: {}: expected an adapter of type {}, got {}; set adapter.type to that",
               section.path, text_of(section.type), text_of(result.spec.type));
  }
  if (result.spec.pissa_iterations > 0) {
    user_error(
        "adapter.path: {}: init_lora_weights: pissa_niter_{}: its base came of random numbers that "
        "are not stored; save it in PEFT with path_initial_model_for_weight_conversion",
        section.path, result.spec.pissa_iterations);
  }
  result.spec.dropout = section.dropout;
  check_trainable(result.spec, shape);
  return result;
}

config::RunConfig with_adapter(config::RunConfig config, const JobAdapter& adapter) {
  static_cast<models::AdapterSpec&>(config.adapter) = adapter.spec;
  return config;
}

FirstValues change_base(models::LanguageModel& model, JobAdapter& adapter,
                        const config::RunConfig& config, FirstValues values,
                        const mesh::Axis& axis) {
  const bool is_pissa = adapter.spec.type != models::AdapterType::none &&
                        adapter.spec.init == models::AdapterInit::pissa;
  if (adapter.below.empty() && !is_pissa) return values;
  const auto& shape = model.shape();
  values = with_parts(shape, std::move(values), adapter.below);
  if (is_pissa) {
    AdapterPart initial;
    if (const auto kept = kept_initial(config); !kept.empty()) {
      const auto found = std::make_shared<const PeftAdapter>(kept, shape);
      initial = {
          .spec = found->config().spec, .tensors = {found, &found->tensors()}, .subtracts = true};
    } else {
      initial = pissa_start(adapter.spec, shape, adapter.seed, FilledSource(shape, values), axis);
    }
    if (!adapter.stored && has_its_shapes(initial, adapter.spec, shape)) {
      adapter.stored = initial.tensors;
    }
    values = with_parts(shape, std::move(values), {initial});
    adapter.initial = std::make_shared<const AdapterPart>(std::move(initial));
  }
  for (const auto& item : model.named_parameters()) {
    // Where rank 0's values count, it holds them whole.
    if (!item.value().is_meta()) values(item.key(), 0, item.value().detach().view({-1}));
  }
  return values;
}

FirstValues add_adapter(models::LanguageModel& model, const JobAdapter& adapter,
                        models::BaseValues base) {
  if (adapter.spec.type == models::AdapterType::none) return base.values;
  models::adapt(model, adapter.spec);
  if (adapter.initial) {
    auto added = *adapter.initial;
    added.subtracts = false;
    base.begun_with = with_parts(model.shape(), std::move(base.begun_with), {added});
  }
  auto values = models::adapted_values(adapter.spec, model.shape(), adapter.seed, std::move(base));
  const auto& stored = adapter.stored;
  if (stored) {
    values = [stored, first = std::move(values)](const std::string& name, int64_t begin,
                                                 const torch::Tensor& part) {
      if (!stored->contains(name)) return first(name, begin, part);
      checkpoint::read_into(*stored, name, begin, part);
    };
  }
  for (const auto& item : model.named_parameters()) {
    // Where rank 0's values count, it holds them whole.
    const auto& parameter = item.value();
    if (parameter.is_meta() || !parameter.requires_grad()) continue;
    values(item.key(), 0, parameter.detach().view({-1}));
  }
  return values;
}

}  // namespace tessera::train
