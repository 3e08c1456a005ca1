#include "tessera/inference/model.h"

#include <algorithm>
#include <map>
#include <utility>

#include "tessera/checkpoint/formats/pretrained.h"
#include "tessera/checkpoint/formats/stored_adapter.h"
#include "tessera/checkpoint/tensors.h"
#include "tessera/inference/stored_shape.h"
#include "tessera/models/adapt.h"
#include "tessera/nn/allocate.h"
#include "tessera/parallel/tensor/tensor_parallel.h"
#include "tessera/train/balance.h"
#include "tessera/train/engine_options.h"
#include "tessera/train/quantised_load.h"

namespace tessera::inference {
namespace {

using checkpoint::TensorSource;

/// What most elements are stored as, if this device computes with it; else float32.
torch::Dtype most_stored(const TensorSource& stored, torch::Device device) {
  std::map<checkpoint::DType, int64_t> counts;
  for (const auto& [name, info] : stored.tensors()) counts[info.dtype] += info.num_elements();
  const auto most =
      std::ranges::max_element(counts, {}, [](const auto& of_dtype) { return of_dtype.second; });
  if (most == counts.end()) return torch::kFloat32;
  const auto type = checkpoint::torch_dtype(most->first);
  const bool computes = type == torch::kBFloat16 || (type == torch::kFloat16 && !device.is_cpu());
  return computes ? type : torch::kFloat32;
}

using Fill = parallel::FlatBuffer::Fill;

/// A stored model, or a stored adapter and the model beside which it was trained.
struct Stored {
  checkpoint::TrainingSource training;
  std::optional<checkpoint::StoredAdapter> adapter;
  std::optional<checkpoint::TrainingSource> base;
  std::shared_ptr<const TensorSource> changed_base;
  std::optional<checkpoint::SourceView> both;

  const TensorSource& tensors() const { return both ? *both : training.tensors; }
};

std::shared_ptr<const Stored> open_stored(const checkpoint::TrainingOptions& from) {
  auto stored = std::make_shared<Stored>(checkpoint::open_training(from));
  stored->adapter = checkpoint::stored_adapter(stored->training, from.source);
  if (!stored->adapter) return stored;
  checkpoint::check_base_weights(stored->adapter->base, from.source.string());
  stored->base =
      checkpoint::open_training({.source = stored->adapter->base.path, .with_optimizer = false});
  const auto shape = stored_shape(stored->training, 1);
  stored->changed_base = checkpoint::with_parts(
      {std::shared_ptr<void>(), &stored->base->tensors},  // which this struct keeps
      checkpoint::parts_of_base(*stored->adapter, shape), shape);
  stored->both.emplace(from.source);
  for (const auto* source :
       {static_cast<const TensorSource*>(&stored->training.tensors), stored->changed_base.get()}) {
    for (const auto& [name, info] : source->tensors()) {
      if (!stored->both->contains(name)) stored->both->add(name, *source, name);
    }
  }
  return stored;
}

void fill_model(models::LanguageModel& model, const Fill& fill, const parallel::TensorParts& parts,
                torch::Device device) {
  const torch::NoGradGuard no_grad;
  nn::allocate_parameters(model, device);
  for (const auto& item : model.named_parameters()) {
    const auto flat = item.value().view({-1});
    const auto part = parts.find(item.key());
    if (part == parts.end()) {
      fill(item.key(), 0, flat);
    } else {
      part->second.stripe.for_each_stretch(0, flat.numel(),
                                           [&](int64_t position, int64_t k, int64_t n) {
                                             fill(item.key(), position, flat.narrow(0, k, n));
                                           });
    }
  }
}

}  // namespace

StoredModel load_model(checkpoint::TrainingOptions from, std::optional<FloatType> dtype,
                       const mesh::DeviceMesh& mesh, WeightFormat weights) {
  from.with_optimizer = false;
  const auto opened = open_stored(from);
  const auto& training = opened->training;
  const auto shape = stored_shape(training, mesh.shape().tp);
  const auto type =
      dtype ? train::torch_dtype(*dtype) : most_stored(opened->tensors(), mesh.device());
  const auto& adapter = opened->adapter;
  const auto options = torch::dtype(type).device(torch::kMeta);
  // In the layout in which it is stored: tensors are checked against it.
  auto model = models::make_language_model(shape, options);
  if (adapter) models::adapt(*model, adapter->spec);
  const checkpoint::Pretrained pretrained(*model, {opened, &opened->tensors()});
  Fill fill = [stored = pretrained](const std::string& name, int64_t begin,
                                    const torch::Tensor& part) {
    stored.copy_part(name, begin, part);
  };
  if (weights != WeightFormat::as_stored) {
    model = models::make_language_model(shape, options);
    const auto layers =
        nn::quantise_linear_layers(*model, model->layout().layers, {.format = weights});
    fill = train::quantised(std::move(fill), layers);
    if (adapter) models::adapt(*model, adapter->spec);
  }
  const auto parts =
      parallel::tensor_parallel(*model, model->tensor_plan(), mesh, {.sequence_parallel = false});
  fill_model(*model, fill, parts, mesh.device());
  train::take_selection_biases(train::routers_of(*model), pretrained, mesh.device());
  model->eval();
  return {.model = std::move(model),
          .assets = training.assets_folder,
          .job = config::read_stored_job(training.about.config),
          .note = pretrained.note_of_unread()};
}

}  // namespace tessera::inference
