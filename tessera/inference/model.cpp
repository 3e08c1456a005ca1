#include "tessera/inference/model.h"

#include <algorithm>
#include <map>
#include <utility>

#include "tessera/checkpoint/formats/pretrained.h"
#include "tessera/checkpoint/tensors.h"
#include "tessera/inference/stored_shape.h"
#include "tessera/nn/replace_values.h"
#include "tessera/parallel/tensor/tensor_parallel.h"
#include "tessera/train/engine_options.h"

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

void fill(models::LanguageModel& model, const checkpoint::Pretrained& stored,
          const parallel::TensorParts& parts, torch::Device device) {
  const torch::NoGradGuard no_grad;
  for (const auto& item : model.named_parameters()) {
    const auto& parameter = item.value();
    const auto values =
        torch::empty(parameter.sizes(), parameter.options().device(device).requires_grad(false));
    const auto part = parts.find(item.key());
    stored.copy_part(item.key(), 0, values.view({-1}),
                     part == parts.end() ? Stripe{} : part->second.stripe);
    nn::replace_values(parameter, values);
  }
}

}  // namespace

StoredModel load_model(checkpoint::TrainingOptions from, std::optional<FloatType> dtype,
                       const mesh::DeviceMesh& mesh) {
  from.with_optimizer = false;
  const auto training =
      std::make_shared<checkpoint::TrainingSource>(checkpoint::open_training(from));
  const auto shape = stored_shape(*training, mesh.shape().tp);
  const auto type =
      dtype ? train::torch_dtype(*dtype) : most_stored(training->tensors, mesh.device());
  auto model = models::make_language_model(shape, torch::dtype(type).device(torch::kMeta));
  const std::shared_ptr<const TensorSource> tensors(training, &training->tensors);
  const checkpoint::Pretrained stored(*model, tensors);
  const auto parts =
      parallel::tensor_parallel(*model, model->tensor_plan(), mesh, {.sequence_parallel = false});
  fill(*model, stored, parts, mesh.device());
  model->eval();
  return {.model = std::move(model),
          .assets = training->assets_folder,
          .job = config::read_stored_job(training->about.config)};
}

}  // namespace tessera::inference
