#include "tessera/estimate/buffers.h"

#include <algorithm>
#include <numeric>
#include <variant>

namespace tessera::estimate {
namespace {

using config::ModelFamily;
using config::ModelShape;
using config::RunConfig;

int64_t block_parameters(const ModelShape& shape) {
  auto one = shape, none = shape;
  one.num_layers = 1, none.num_layers = 0;
  return config::num_parameters(one) - config::num_parameters(none);
}

/// Embedding, blocks, and norm with head: or tied, embedding with norm and head, then blocks.
std::vector<UnitPlan> units_without_buffers(const RunConfig& config, const ModelShape& shape,
                                            std::vector<int64_t>& elements) {
  if (config.parallel.units == "model") {
    elements = {config::num_parameters(shape)};
    return {{.name = "model", .num_blocks = shape.num_layers, .predicts = true}};
  }
  const int64_t block = block_parameters(shape);
  const int64_t rest = config::num_parameters(shape) - shape.num_layers * block;
  const int64_t last_norm = (shape.family == ModelFamily::gpt2 ? 2 : 1) * shape.dim;
  const int64_t head = shape.tie_embeddings ? 0 : shape.vocab_size * shape.dim + last_norm;
  std::vector<UnitPlan> units{{.name = "embedding", .predicts = shape.tie_embeddings}};
  elements = {rest - head};
  for (int64_t i = 0; i < shape.num_layers; ++i) {
    units.push_back({.name = "layers." + std::to_string(i), .num_blocks = 1});
    elements.push_back(block);
  }
  if (!shape.tie_embeddings) {
    units.push_back({.name = "head", .predicts = true});
    elements.push_back(head);
  }
  return units;
}

int64_t bytes_named(const std::string& dtype) { return dtype == "fp32" ? 4 : 2; }

/// As the engine chooses (flat_options in parallel/data/unit.cpp).
BufferPlan plan_buffer(const RunConfig& config, int64_t elements, bool offloaded,
                       bool device_is_host) {
  const auto& section = config.parallel;
  const auto& precision = config.precision;
  BufferPlan plan{.elements = elements};
  if (section.placement != "replicate") {
    const auto mesh = config::mesh_sizes(section, section.num_ranks);
    if (const auto* sizes = std::get_if<config::MeshSizes>(&mesh)) plan.num_slices = sizes->dp_shard;
  }
  plan.whole_bytes = plan.slice_bytes = plan.gradient_bytes = bytes_named(precision.parameters);
  if (precision.compute != "fp32" && !precision.autocast) {
    plan.whole_bytes = 2;
    plan.gradient_bytes = bytes_named(precision.reduce);
  }
  const bool alone = plan.num_slices == 1;
  plan.keeps_whole = section.placement != "full_shard" || alone;
  plan.keeps_gradient =
      alone || section.placement == "replicate" || section.placement == "shard_optimizer";
  plan.keeps_copy = offloaded && section.offload_optimizer && !plan.keeps_whole;
  plan.slice_in_whole = plan.keeps_whole && plan.slice_bytes == plan.whole_bytes && !offloaded;
  plan.gradient_slice_in_gradient =
      plan.keeps_gradient && plan.gradient_bytes >= plan.slice_bytes && !offloaded;
  plan.on_host = offloaded && !device_is_host;
  return plan;
}

/// The largest sum of `count` neighbours: units come and go in order.
double largest_neighbours(const std::vector<double>& values, size_t count) {
  double largest = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    const auto end =
        values.begin() + static_cast<std::ptrdiff_t>(std::min(i + count, values.size()));
    largest = std::max(largest,
                       std::accumulate(values.begin() + static_cast<std::ptrdiff_t>(i), end, 0.0));
  }
  return largest;
}

/// Gradients at the most: backward comes to the units in reverse; one unit's whole gradient is
/// computed while that of the one after it is reduced, and the slices of all that came before stay.
double peak_of_backward(const std::vector<UnitBytes>& units) {
  double peak = 0, slices_so_far = 0;
  for (size_t i = units.size(); i-- > 0;) {
    slices_so_far += units[i].gradient_slice;
    const double reduced = i + 1 < units.size() ? units[i + 1].passing_gradients : 0;
    peak = std::max(peak, units[i].passing_gradients + reduced + slices_so_far);
  }
  return peak;
}

}  // namespace

UnitBytes bytes_of(const UnitPlan& unit, const RunConfig& config) {
  UnitBytes result;
  for (const auto& plan : unit.buffers) {
    const auto elements = static_cast<double>(plan.elements);
    const double share = elements / static_cast<double>(plan.num_slices);
    const double here = plan.on_host ? 0 : share;  // what of the slices is on the device
    const auto slice_bytes = static_cast<double>(plan.slice_bytes);
    double parameters = here * slice_bytes;
    double whole = elements * static_cast<double>(plan.whole_bytes);
    if (plan.slice_in_whole) whole -= parameters;
    if (plan.keeps_copy) parameters += share * static_cast<double>(plan.whole_bytes);
    result.parameters += parameters;
    (plan.keeps_whole ? result.kept_whole : result.passing_whole) += whole;
    if (!plan.trained) continue;
    (plan.keeps_gradient ? result.kept_gradients : result.passing_gradients) +=
        elements * static_cast<double>(plan.gradient_bytes);
    if (!plan.gradient_slice_in_gradient) {
      result.gradient_slice +=
          here * static_cast<double>(std::max(plan.slice_bytes, plan.gradient_bytes));
    }
    if (config.optimizer.type == "adamw") {
      result.optimizer +=
          2 * here * static_cast<double>(bytes_named(config.precision.optimizer_states));
    } else if (config.optimizer.momentum != 0) {
      result.optimizer += here * slice_bytes;
    }
  }
  return result;
}

std::vector<UnitPlan> plan_units(const RunConfig& config, const ModelShape& shape,
                                 bool device_is_host) {
  std::vector<int64_t> elements;
  auto units = units_without_buffers(config, shape, elements);
  const auto& section = config.parallel;
  const bool offloads = section.offload_params || section.offload_optimizer;
  const double wanted =
      offloads ? section.offload_fraction * static_cast<double>(config::num_parameters(shape)) : 0;
  double offloaded = 0;  // the last units first
  for (size_t i = units.size(); i-- > 0;) {
    const bool here = offloaded < wanted;
    units[i].buffers.push_back(plan_buffer(config, elements[i], here, device_is_host));
    if (here) offloaded += static_cast<double>(elements[i]);
  }
  return units;
}

StateBytes peak_of_states(const std::vector<UnitBytes>& units,
                          const config::ParallelSection& section) {
  StateBytes result;
  std::vector<double> passing;
  for (const auto& unit : units) {
    result.parameters += unit.parameters;
    result.gathered += unit.kept_whole;
    result.gradients += unit.kept_gradients;
    result.optimizer += unit.optimizer;
    passing.push_back(unit.passing_whole);
  }
  // The unit at work and the one that is on the way.
  const bool prefetches = section.forward_prefetch || section.backward_prefetch != "none";
  const auto in_flight = std::min<int64_t>(section.max_gathered_units, prefetches ? 2 : 1);
  result.gathered += largest_neighbours(passing, static_cast<size_t>(in_flight));
  result.gradients += peak_of_backward(units);
  return result;
}

}  // namespace tessera::estimate
