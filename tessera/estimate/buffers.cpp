#include "tessera/estimate/buffers.h"

#include <algorithm>
#include <numeric>

#include "tessera/models/spec.h"

namespace tessera::estimate {
namespace {

using config::RunConfig;

using Division = models::Division;

int64_t num_elements(const std::vector<models::ParameterSpec>& parameters) {
  int64_t elements = 0;
  for (const auto& parameter : parameters) elements += parameter.num_elements();
  return elements;
}

int64_t num_elements(const std::vector<models::ParameterSpec>& parameters, Division division) {
  int64_t elements = 0;
  for (const auto& parameter : parameters) {
    if (parameter.division == division) elements += parameter.num_elements();
  }
  return elements;
}

/// How many of a block's parameters have gradients that ranks of tp sum: norms and biases of width
/// D, where positions are divided; norms of heads; key heads that several ranks have
/// (docs/tensor_parallel.md).
int64_t summed_in_block(const RankPart& part, const models::ParameterSpecs& parameters) {
  if (part.mesh.tp == 1) return 0;
  int64_t summed = num_elements(parameters.block, Division::per_head);
  if (part.position_ranks > 1) summed += num_elements(parameters.block, Division::per_position);
  if (part.key_copies > 1) summed += num_elements(parameters.block, Division::key_heads);
  return summed;
}

/// A unit without buffers, and how much they are to hold.
struct Sized {
  UnitPlan unit;
  int64_t elements = 0;
};

/// The units of a rank: embedding, blocks, and norm with head; or tied, embedding with norm and
/// head, then blocks.
std::vector<Sized> sized_units(const RankPart& part) {
  const auto& shape = part.shape;
  const auto parameters = models::spec_of(shape.family).parameters(shape);
  const int64_t table = shape.vocab_size * shape.dim;
  const int64_t last_norm = num_elements(parameters.head, Division::per_position);
  const int64_t embedding = num_elements(parameters.embedding);
  const int64_t block = num_elements(parameters.block), summed = summed_in_block(part, parameters);
  const int64_t summed_norm = part.position_ranks > 1 ? last_norm : 0;
  const int64_t elsewhere = part.shares_table ? table : 0;
  const bool tied_here = part.has_tied_table();
  std::vector<Sized> units;
  for (size_t stage = 0; stage < part.stages.size(); ++stage) {
    const auto& layers = part.stages[stage].layers;
    const auto at = layers.begin;
    if (part.stages[stage].embeds) {
      units.push_back({{.name = "embedding",
                        .stage = stage,
                        .layers = {at, at},
                        .predicts = tied_here,
                        .summed = tied_here ? summed_norm : 0,
                        .table = elsewhere},
                       embedding + (tied_here ? last_norm : 0)});
    }
    for (int64_t i = at; i < layers.end; ++i) {
      units.push_back({{.name = "layers." + std::to_string(i),
                        .stage = stage,
                        .layers = {i, i + 1},
                        .summed = summed},
                       block});
    }
    if (part.stages[stage].predicts && !tied_here) {
      units.push_back({{.name = "head",
                        .stage = stage,
                        .layers = {layers.end, layers.end},
                        .predicts = true,
                        .summed = summed_norm,
                        .table = elsewhere},
                       table + last_norm});
    }
  }
  return units;
}

/// Joins all units of a stage into one.
std::vector<Sized> one_a_stage(const std::vector<Sized>& units) {
  std::vector<Sized> result;
  for (const auto& [unit, elements] : units) {
    if (result.empty() || result.back().unit.stage != unit.stage) {
      result.push_back({unit, 0});
      result.back().unit.name = "model";
      result.back().unit.summed = result.back().unit.table = 0;
    }
    auto& all = result.back();
    all.elements += elements;
    all.unit.layers.end = unit.layers.end;
    all.unit.predicts = all.unit.predicts || unit.predicts;
    all.unit.summed += unit.summed;
    all.unit.table += unit.table;
  }
  return result;
}

int64_t bytes_named(const std::string& dtype) { return dtype == "fp32" ? 4 : 2; }

/// The flat buffer that the engine would choose (flat_options in parallel/data/unit.cpp).
BufferPlan plan_buffer(const RunConfig& config, const config::MeshSizes& mesh, int64_t elements,
                       bool offloaded, bool device_is_host) {
  const auto& section = config.parallel;
  const auto& precision = config.precision;
  BufferPlan plan{.elements = elements};
  if (section.placement != "replicate") plan.num_slices = mesh.dp_shard;
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

/// Bytes of all whole gradients of `units` at once, with the slices of two: one that is reduced,
/// one that comes next.
double all_whole(const std::vector<UnitBytes>& units) {
  double whole = 0;
  std::vector<double> slices;
  for (const auto& unit : units) {
    whole += unit.passing_gradients;
    slices.push_back(unit.gradient_slice);
  }
  return whole + largest_neighbours(slices, 2);
}

/// Peak bytes of gradients: backward comes to the units in reverse; one unit's whole gradient is
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

std::vector<UnitPlan> plan_units(const RunConfig& config, const RankPart& part,
                                 bool device_is_host) {
  const auto& section = config.parallel;
  auto units = sized_units(part);
  if (section.units == "model") units = one_a_stage(units);
  double wanted = 0;
  if (section.offload_params || section.offload_optimizer) {
    for (const auto& unit : units) wanted += static_cast<double>(unit.elements);
    wanted *= section.offload_fraction;
  }
  double offloaded = 0;  // the last units first
  std::vector<UnitPlan> result(units.size());
  for (size_t i = units.size(); i-- > 0;) {
    const bool here = offloaded < wanted;
    result[i] = units[i].unit;
    result[i].buffers.push_back(
        plan_buffer(config, part.mesh, units[i].elements, here, device_is_host));
    if (here) offloaded += static_cast<double>(units[i].elements);
  }
  return result;
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
  result.gradients += section.pp != 1 ? all_whole(units) : peak_of_backward(units);
  return result;
}

}  // namespace tessera::estimate
