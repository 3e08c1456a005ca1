#include "tessera/train/job_adapter.h"

#include <string>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/checkpoint/tensors.h"

namespace tessera::train {

JobAdapter adapter_of(const config::RunConfig& config, const models::ModelShape& shape) {
  const auto& section = config.adapter;
  if (section.path.empty()) return {section, config.model.seed, nullptr};
  auto stored = std::make_shared<checkpoint::PeftAdapter>(section.path, shape);
  auto spec = stored->config().spec;
  if (spec.type != section.type) {
    user_error("adapter.path: {}: expected an adapter of type {}, got {}; set adapter.type to that",
               section.path, text_of(section.type), text_of(spec.type));
  }
  spec.dropout = section.dropout;
  return {std::move(spec), config.model.seed, std::move(stored)};
}

config::RunConfig with_adapter(config::RunConfig config, const JobAdapter& adapter) {
  static_cast<models::AdapterSpec&>(config.adapter) = adapter.spec;
  return config;
}

models::FirstValues add_adapter(models::LanguageModel& model, const JobAdapter& adapter,
                                models::FirstValues base) {
  if (adapter.spec.type == models::AdapterType::none) return base;
  models::adapt(model, adapter.spec);
  auto values = models::adapted_values(adapter.spec, model.shape(), adapter.seed, std::move(base));
  if (adapter.stored) {
    values = [stored = adapter.stored, first = std::move(values)](
                 const std::string& name, int64_t begin, const torch::Tensor& part) {
      if (!stored->tensors().contains(name)) return first(name, begin, part);
      checkpoint::read_into(stored->tensors(), name, begin, part);
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
