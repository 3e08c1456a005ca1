#include "tessera/train/fp8.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <set>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/comm/nccl.h"
#include "tessera/nn/linear.h"
#include "tessera/plan/fp8_units.h"
#include "tessera/report/progress.h"
#include "tessera/train/assemble.h"

namespace tessera::train {
namespace {

constexpr std::array<const char*, kernels::kFp8Operands> kOperands{"input", "weight",
                                                                   "output's gradient"};

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
void check_scales(const Fp8Layer& layer, const kernels::Fp8Amax& amax, int64_t step) {
  for (size_t operand = 0; operand < amax.size(); ++operand) {
    const float scale = layer.history->scale(static_cast<kernels::Fp8Operand>(operand));
    if (std::isfinite(amax[operand]) && std::isnormal(scale)) continue;
    user_error(
        "step {}: {}: the largest number of its {} is {}, so that fp8_delayed has no scale for it; "
        "set optimizer.learning_rate lower, precision.fp8_margin to 0, or name the layer in "
        "precision.fp8_keep",
        step + 1, layer.path, kOperands[operand], amax[operand]);
  }
}

/// What was seen becomes the next step's scales. One message for all layers.
void finish_histories(Run& run, int64_t step) {
  std::vector<torch::Tensor> parts;
  for (const auto& layer : run.fp8) {
    if (layer.is_here) parts.push_back(torch::tensor(torch::ArrayRef<float>(layer.watch->amax)));
  }
  if (parts.empty()) return;
  const auto amax = torch::stack(parts).to(run.device);
  run.tensor_axis.all_reduce(amax, comm::ReduceOp::max).wait();
  run.data_axis.all_reduce(amax, comm::ReduceOp::max).wait();
  const auto largest = amax.cpu();
  const auto* next = largest.const_data_ptr<float>();
  for (const auto& layer : run.fp8) {
    if (!layer.is_here) continue;
    kernels::Fp8Amax seen;
    std::copy_n(next, seen.size(), seen.begin());
    next += seen.size();
    layer.history->finish_step(step, seen);
    check_scales(layer, seen, step);
  }
}

/// What of this rank had no scale: weights as they are kept, then inputs and weights of products in the order
/// of the forward, then gradients in that of the backward.
std::string own_without_scale(const Run& run) {
  const auto weights = run.parallel.parameters_without_scale();
  if (!weights.empty()) return fmt::format("{} holds NaN or infinity", weights.front());
  const auto text = [](const Fp8Layer& layer, kernels::Fp8Operand operand) -> std::string {
    const auto index = static_cast<size_t>(operand);
    if (!layer.is_here || layer.watch == nullptr || std::isfinite(layer.watch->amax[index]))
      return "";
    return fmt::format("the {} of {} holds infinity", kOperands[index], layer.path);
  };
  for (const auto& layer : run.fp8) {
    for (const auto operand : {kernels::Fp8Operand::weight, kernels::Fp8Operand::input}) {
      if (auto found = text(layer, operand); !found.empty()) return found;
    }
  }
  for (size_t i = run.fp8.size(); i-- > 0;) {
    if (auto found = text(run.fp8[i], kernels::Fp8Operand::gradient); !found.empty()) return found;
  }
  return "";
}

/// The same of the first rank that has any.
std::string without_scale(const Run& run) {
  for (auto& text : run.world.all_gather_bytes(own_without_scale(run))) {
    if (!text.empty()) return text;
  }
  return "";
}

/// Roundings of all layers, put together from the ranks that have them.
std::vector<report::Fp8Rounding> roundings_of_all(const Run& run) {
  const auto num_layers = static_cast<int64_t>(run.fp8.size());
  const auto largest =
      torch::full({num_layers, kernels::kFp8Operands, 2}, -INFINITY, torch::kFloat64);
  const auto counts = torch::zeros({num_layers, kernels::kFp8Operands, 3}, torch::kFloat64);
  auto largest_of = largest.accessor<double, 3>();
  auto count_of = counts.accessor<double, 3>();
  for (int64_t i = 0; i < num_layers; ++i) {
    const auto& layer = run.fp8[static_cast<size_t>(i)];
    for (int64_t j = 0; layer.is_here && j < kernels::kFp8Operands; ++j) {
      const auto& losses = layer.watch->losses[static_cast<size_t>(j)];
      largest_of[i][j][0] = layer.watch->amax[static_cast<size_t>(j)];
      largest_of[i][j][1] = -losses.least_scale;
      count_of[i][j][0] = static_cast<double>(losses.numbers);
      count_of[i][j][1] = static_cast<double>(losses.underflows);
      count_of[i][j][2] = static_cast<double>(losses.overflows);
    }
  }
  run.world.all_reduce(largest, comm::ReduceOp::max).wait();
  run.world.all_reduce(counts, comm::ReduceOp::sum).wait();
  std::vector<report::Fp8Rounding> all;
  for (int64_t i = 0; i < num_layers; ++i) {
    const auto& layer = run.fp8[static_cast<size_t>(i)];
    auto& added = all.emplace_back(report::Fp8Rounding{.layer = layer.block, .path = layer.path});
    for (int64_t j = 0; j < kernels::kFp8Operands; ++j) {
      const double numbers = count_of[i][j][0];
      if (numbers == 0) continue;  // an expert without tokens
      added.operands[static_cast<size_t>(j)] = {.amax = largest_of[i][j][0],
                                                .scale = -largest_of[i][j][1],
                                                .underflow = count_of[i][j][1] / numbers,
                                                .overflow = count_of[i][j][2] / numbers};
    }
  }
  return all;
}

void collect_watches(const Run& run) {
  std::vector<kernels::Fp8WatchPtr> watches;
  for (const auto& layer : run.fp8) {
    if (layer.watch != nullptr) watches.push_back(layer.watch);
  }
  kernels::collect(watches);
}

bool multiplies_in_fp8(const Run& run) {
  return run.config.precision.matmul != Matmul::as_compute && !run.fp8.empty();
}

}  // namespace

std::vector<Fp8Layer> layers_in_fp8(const std::vector<plan::Fp8Layer>& planned) {
  std::vector<Fp8Layer> layers;
  for (const auto& layer : planned) {
    if (!layer.kept) layers.push_back({.path = layer.path, .block = layer.block});
  }
  return layers;
}

std::function<bool(const std::string&)> are_weights_of(const std::vector<Fp8Layer>& layers) {
  std::set<std::string> names;
  for (const auto& layer : layers) names.insert(layer.path + ".weight");
  return [names = std::move(names)](const std::string& name) { return names.contains(name); };
}

std::string multiply_in_fp8(models::LanguageModel& model, std::vector<Fp8Layer>& layers,
                            const config::PrecisionSection& section, torch::Device device) {
  if (section.matmul == Matmul::as_compute) return "";
  std::optional<GpuModel> gpu;
  if (device.is_cuda()) gpu = comm::gpu_model(device.index());
  auto choice = plan::choose_units(section.matmul, section.fp8_emulate, gpu);
  auto recipe = section.fp8_recipe();
  recipe.by_device = choice.by_device;
  const auto modules = model.named_modules();
  for (auto& layer : layers) {
    auto* module = modules[layer.path]->as<nn::LinearImpl>();
    TORCH_INTERNAL_ASSERT(module != nullptr, layer.path);
    check_size(layer.path, module->weight, section);
    layer.watch = std::make_shared<kernels::Fp8Watch>();
    if (section.matmul == Matmul::fp8_delayed) {
      layer.history = std::make_shared<kernels::Fp8History>(recipe);
    }
    module->products = kernels::fp8_products(recipe, layer.watch, layer.history);
  }
  return std::move(choice.note);
}

void note_fp8_here(const models::LanguageModel& model, std::vector<Fp8Layer>& layers) {
  const auto parameters = model.named_parameters();
  for (auto& layer : layers) layer.is_here = parameters.contains(layer.path + ".weight");
}

void begin_fp8_step(Run& run, int64_t step) {
  if (!multiplies_in_fp8(run)) return;
  const bool counts = report::line_is_due(step + 1, run.config.logging.every, run.num_steps);
  for (auto& layer : run.fp8) *layer.watch = {.counts = counts};
}

Fp8Step finish_fp8_step(Run& run, int64_t step, bool skipped) {
  if (run.fp8.empty()) return {};
  collect_watches(run);
  if (skipped) return {.layers = {}, .without_scale = without_scale(run)};
  if (!multiplies_in_fp8(run)) return {};
  if (run.config.precision.matmul == Matmul::fp8_delayed) finish_histories(run, step);
  if (!run.fp8.front().watch->counts) return {};
  return {.layers = roundings_of_all(run), .without_scale = ""};
}

}  // namespace tessera::train
