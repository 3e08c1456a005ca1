#include "tessera/train/first_weights.h"

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tessera/train/quantised_load.h"

namespace tessera::train {
namespace {

/// Writes first values of the whole model's parameters.
models::FirstValues first_values(const models::LanguageModel& model,
                                 const config::ModelSection& section,
                                 const std::optional<checkpoint::Pretrained>& stored) {
  if (stored) {
    return [stored = *stored](const std::string& name, int64_t begin, const torch::Tensor& part) {
      stored.copy_part(name, begin, part);
    };
  }
  std::map<std::string, int64_t> dims;
  for (const auto& item : model.named_parameters()) dims[item.key()] = item.value().dim();
  return [&model, dims, seed = section.seed, std = section.init_std](
             const std::string& name, int64_t begin, const torch::Tensor& part) {
    models::initialise_part(model, name, dims.at(name), seed, std, begin, part);
  };
}

/// Keeps the linear layers of blocks as model.weights says.
std::vector<nn::QuantisedLayer> quantise(models::LanguageModel& model,
                                         const config::ModelSection& section) {
  if (section.weights == WeightFormat::as_stored) return {};
  return nn::quantise_linear_layers(model, model.layout().layers,
                                    {.format = section.weights, .block = section.weights_block});
}

}  // namespace

std::optional<checkpoint::Pretrained> stored_weights(const models::LanguageModel& model,
                                                     const config::ModelSection& section) {
  if (section.init != models::Init::pretrained) return {};
  return checkpoint::Pretrained(model, section.path);
}

parallel::FlatBuffer::Fill complete(models::LanguageModel& model, JobAdapter& adapter,
                                    const config::RunConfig& config,
                                    const std::optional<checkpoint::Pretrained>& stored,
                                    const mesh::Axis& axis) {
  const auto base =
      change_base(model, adapter, config, first_values(model, config.model, stored), axis);
  const auto layers = quantise(model, config.model);
  return quantised(
      add_adapter(model, adapter, {.values = base, .begun_with = dequantised(base, layers)}),
      layers);
}

parallel::FlatBuffer::Fill fill_parts(parallel::FlatBuffer::Fill fill,
                                      const parallel::TensorParts& parts) {
  if (parts.empty()) return fill;
  return [fill = std::move(fill), parts](const std::string& name, int64_t begin,
                                         const torch::Tensor& part) {
    parts.at(name).stripe.for_each_stretch(begin, part.numel(),
                                           [&](int64_t position, int64_t k, int64_t n) {
                                             fill(name, position, part.narrow(0, k - begin, n));
                                           });
  };
}

}  // namespace tessera::train
