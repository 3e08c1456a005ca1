#include "tessera/models/adapt.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "tessera/nn/initialise.h"
#include "tessera/nn/low_rank.h"
#include "tessera/nn/module_path.h"

namespace tessera::models {
namespace {

template <typename Layer>
Layer& layer_at(const LanguageModel& model, const std::string& path) {
  auto* layer = dynamic_cast<Layer*>(nn::find_module(model, path).get());
  TORCH_INTERNAL_ASSERT(layer != nullptr, path, " is of another kind");
  return *layer;
}

/// The squares of the base's weight, summed over each of the outputs begin .. of n.
torch::Tensor squared_norms(const FirstValues& base, const AdaptedModule& module, int64_t begin,
                            int64_t n) {
  constexpr int64_t kNumbersAtOnce = 1 << 20;
  const auto weight = module.path + ".weight";
  auto sums = torch::zeros({n}, torch::kFloat64);
  if (module.inputs_first) {
    const auto row = torch::empty({n});
    for (int64_t i = 0; i < module.inputs; ++i) {
      base(weight, i * module.outputs + begin, row);
      sums += row.to(torch::kFloat64).square();
    }
    return sums;
  }
  const int64_t at_once = std::max<int64_t>(1, kNumbersAtOnce / module.inputs);
  for (int64_t row = 0; row < n; row += at_once) {
    const int64_t rows = std::min(at_once, n - row);
    const auto values = torch::empty({rows * module.inputs});
    base(weight, (begin + row) * module.inputs, values);
    sums.narrow(0, row, rows) +=
        values.view({rows, module.inputs}).to(torch::kFloat64).square().sum(1);
  }
  return sums;
}

/// The random one of an adapter's two matrices.
void draw(const AdaptedModule& module, AdapterInit init, const std::string& name, int64_t seed,
          int64_t begin, const torch::Tensor& part) {
  switch (init) {
    case AdapterInit::kaiming:
      if (module.embedding) return nn::fill_portable_normal(part, name, seed, 1, begin);
      // Uniform within 1 / sqrt(inputs): He et al. (ICCV 2015) with a slope of sqrt(5).
      return nn::fill_portable(part, name, seed,
                               1 / std::sqrt(3 * static_cast<double>(module.inputs)), begin);
    case AdapterInit::gaussian:
      return nn::fill_portable_normal(part, name, seed, 1 / static_cast<double>(module.rank),
                                      begin);
  }
}

}  // namespace

void adapt(LanguageModel& model, const AdapterSpec& spec) {
  std::set<std::string> trained;
  for (const auto& parameter : trained_parameters(spec, model.shape())) {
    trained.insert(parameter.name);
  }
  for (const auto& item : model.named_parameters()) {
    item.value().requires_grad_(trained.contains(item.key()));
  }
  for (const auto& module : adapted_modules(spec, model.shape())) {
    const nn::LowRankOptions options{.rank = module.rank,
                                     .scale = module.scale,
                                     .dropout = spec.dropout,
                                     .magnitude = spec.type == AdapterType::dora,
                                     .dropout_name = module.path};
    if (module.embedding) {
      nn::add_low_rank(layer_at<nn::EmbeddingImpl>(model, module.path), options);
    } else {
      nn::add_low_rank(layer_at<nn::LinearImpl>(model, module.path), options);
    }
  }
}

FirstValues adapted_values(const AdapterSpec& spec, const ModelShape& shape, int64_t seed,
                           FirstValues base) {
  std::map<std::string, AdaptedModule> modules;  // by name of a parameter of its adapter
  for (const auto& module : adapted_modules(spec, shape)) {
    for (const auto& parameter : parameters_of(module, spec.type)) modules[parameter.name] = module;
  }
  return [modules = std::move(modules), init = spec.init, seed, base = std::move(base)](
             const std::string& name, int64_t begin, const torch::Tensor& part) {
    const auto found = modules.find(name);
    if (found == modules.end()) return base(name, begin, part);
    const auto& module = found->second;
    if (name.ends_with(".lora_magnitude_vector")) {
      part.copy_(squared_norms(base, module, begin, part.numel()).sqrt_());
    } else if (name.ends_with(module.embedding ? "_B" : "_A")) {
      draw(module, init, name, seed, begin, part);
    } else {
      part.zero_();
    }
  };
}

}  // namespace tessera::models
