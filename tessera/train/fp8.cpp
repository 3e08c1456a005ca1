#include "tessera/train/fp8.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/config/precision.h"
#include "tessera/nn/linear.h"
#include "tessera/train/assemble.h"

namespace tessera::train {
namespace {

constexpr const char* kOperands[] = {"input", "weight", "output's gradient"};

bool is_inside(const std::string& path, const std::string& module) {
  return path.starts_with(module + ".");
}

void check_size(const std::string& path, const torch::Tensor& weight,
                const config::PrecisionSection& section) {
  const int64_t step = fp8_multiple(section.matmul);
  if (section.fp8_pad || (weight.size(0) % step == 0 && weight.size(1) % step == 0)) return;
  user_error(
      "precision.matmul: {} multiplies sizes that are multiples of {}, and a rank's part of "
      "{}.weight is "
      "[{}, {}]; set precision.fp8_pad to true, or name the layer in precision.fp8_keep",
      text_of(section.matmul), step, path, weight.size(0), weight.size(1));
}

/// Are these layers' scales usable after the step?
void check_scales(const Fp8Layer& layer, const torch::Tensor& amax, int64_t step) {
  for (int operand = 0; operand < 3; ++operand) {
    const float largest = amax[operand].item<float>();
    const float scale = layer.history->scale(static_cast<kernels::Fp8Operand>(operand));
    if (std::isfinite(largest) && scale > 0) continue;
    user_error(
        "step {}: {}: the largest number of its {} is {}, so that fp8_delayed has no scale for it; "
        "set optimizer.learning_rate lower, precision.fp8_margin to 0, or name the layer in "
        "precision.fp8_keep",
        step + 1, layer.path, kOperands[operand], largest);
  }
}

}  // namespace

std::vector<std::string> fp8_layers(const models::LanguageModel& model,
                                    const config::PrecisionSection& section) {
  std::vector<std::string> found;
  if (section.matmul == Matmul::as_compute && !section.has_fp8_weights()) return found;
  const auto blocks = model.layout().layers;
  std::vector<bool> used(section.fp8_keep.size());
  for (const auto& item : model.named_modules()) {
    const auto& path = item.key();
    const auto block = std::ranges::find_if(
        blocks, [&](const auto& candidate) { return is_inside(path, candidate); });
    if (item.value()->as<nn::LinearImpl>() == nullptr || block == blocks.end()) continue;
    const bool at_end = block == blocks.begin() || block + 1 == blocks.end();
    bool kept = false;
    for (size_t i = 0; i < used.size(); ++i) {
      if (config::keeps_layer(section.fp8_keep[i], path, at_end)) kept = used[i] = true;
    }
    if (!kept) found.push_back(path);
  }
  for (size_t i = 0; i < used.size(); ++i) {
    if (used[i]) continue;
    user_error(
        "precision.fp8_keep: '{}' matches no linear layer of a block; expected first_last, or such "
        "as *.down_proj",
        section.fp8_keep[i]);
  }
  return found;
}

std::function<bool(const std::string&)> are_weights_of(const std::vector<std::string>& layers) {
  std::set<std::string> names;
  for (const auto& layer : layers) names.insert(layer + ".weight");
  return [names = std::move(names)](const std::string& name) { return names.contains(name); };
}

std::vector<Fp8Layer> multiply_in_fp8(models::LanguageModel& model,
                                      const std::vector<std::string>& layers,
                                      const config::PrecisionSection& section) {
  std::vector<Fp8Layer> found;
  if (section.matmul == Matmul::as_compute) return found;
  const auto recipe = section.fp8_recipe();
  const auto modules = model.named_modules();
  for (const auto& path : layers) {
    auto* layer = modules[path]->as<nn::LinearImpl>();
    check_size(path, layer->weight, section);
    auto& added = found.emplace_back(Fp8Layer{.path = path, .history = nullptr});
    if (section.matmul == Matmul::fp8_delayed) {
      added.history = std::make_shared<kernels::Fp8History>(recipe);
    }
    layer->products = kernels::fp8_products(recipe, added.history);
  }
  return found;
}

std::vector<std::string> keep_fp8_of(const models::LanguageModel& model,
                                     std::vector<Fp8Layer>& layers) {
  std::vector<std::string> paths;
  for (const auto& layer : layers) {
    if (layer.history) paths.push_back(layer.path);
  }
  const auto parameters = model.named_parameters();
  std::erase_if(layers,
                [&](const auto& layer) { return !parameters.contains(layer.path + ".weight"); });
  return paths;
}

void finish_fp8_step(Run& run, int64_t step, bool skipped) {
  if (run.fp8.empty() || run.fp8.front().history == nullptr) return;
  if (skipped) {
    for (auto& layer : run.fp8) layer.history->drop_step();
    return;
  }
  std::vector<torch::Tensor> parts;
  for (const auto& layer : run.fp8) parts.push_back(layer.history->amax());
  const auto amax = torch::stack(parts).to(run.device);  // one message for all layers
  run.tensor_axis.all_reduce(amax, comm::ReduceOp::max).wait();
  run.data_axis.all_reduce(amax, comm::ReduceOp::max).wait();
  const auto largest = amax.cpu();
  for (size_t i = 0; i < run.fp8.size(); ++i) {
    const auto& layer = run.fp8[i];
    const auto seen = largest[static_cast<int64_t>(i)];
    layer.history->amax().copy_(seen);
    layer.history->finish_step(step);
    check_scales(layer, seen, step);
  }
}

}  // namespace tessera::train
