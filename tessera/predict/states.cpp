#include "tessera/predict/states.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <utility>

#include "tessera/config/needs.h"

namespace tessera::predict {
namespace {

using config::RunConfig;

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

/// The largest sum of what one unit has whole and, if `ahead`, of what of a neighbour is on its way.
double largest_at_once(const std::vector<UnitBytes>& units, bool ahead) {
  double largest = 0;
  for (size_t i = 0; i < units.size(); ++i) {
    const double before = ahead && i > 0 ? units[i - 1].arriving : 0;
    const double after = ahead && i + 1 < units.size() ? units[i + 1].arriving : 0;
    largest = std::max(largest, units[i].passing_whole + std::max(before, after));
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
/// computed while that of the one after it is reduced, and the slices of all that came before stay,
/// unless they are updated at once.
double peak_of_backward(const std::vector<UnitBytes>& units, int64_t updating_ranks) {
  double peak = 0, slices_so_far = 0, to_come = 0, reduced = 0;
  for (size_t i = units.size(); i-- > 0;) {
    const double slice = units[i].gradient_slice, late = units[i].slice_comes_last ? slice : 0;
    const bool goes = updating_ranks > 0 || units[i].gradient_on_drives > 0;
    slices_so_far = slice - late + (goes ? 0 : slices_so_far);
    peak = std::max(peak, units[i].passing_gradients + reduced + slices_so_far);
    slices_so_far += std::exchange(to_come, late);
    reduced = gradients_on_the_way(units[i], updating_ranks);
  }
  return peak;
}

/// `share`: elements of the slice, as gathers take it.
void add_stored_slice(const plan::BufferPlan& plan, double share, UnitBytes& unit) {
  const double bytes = share * static_cast<double>(plan.whole_bytes);
  unit.on_drives += bytes;
  unit.slices_on_drives += bytes;
  if (!plan.trained) return;
  if (plan.master_on_drives) {
    unit.copied_to_drives += bytes;
  } else {
    unit.updated_on_drives += bytes;
    unit.brought_from_drives += bytes;
  }
}

}  // namespace

double gradients_on_the_way(const UnitBytes& unit, int64_t updating_ranks) {
  if (updating_ranks == 1) return 0;  // it is updated before the backward goes on
  return unit.passing_gradients + (updating_ranks > 0 ? unit.gradient_slice : 0);
}

bool backward_reads(const plan::UnitPlan& unit) {
  const bool is_table = !unit.predicts && unit.layers.begin == unit.layers.end;
  return !is_table || !std::ranges::all_of(unit.buffers, &plan::BufferPlan::trained);
}

UnitBytes unit_bytes(const plan::UnitPlan& unit, const RunConfig& config) {
  UnitBytes result;
  for (const auto& plan : unit.buffers) {
    const auto elements = static_cast<double>(plan.elements);
    const double share = elements / static_cast<double>(plan.num_slices);
    const auto slice_bytes = static_cast<double>(plan.slice_bytes);
    const bool slice_here = plan.slice == plan::Tier::device && !plan.master_on_drives;
    double parameters = slice_here ? share * slice_bytes : 0;
    double whole = elements * static_cast<double>(plan.whole_bytes);
    if (plan.slice_in_whole) whole -= parameters;
    if (plan.keeps_copy) parameters += share * static_cast<double>(plan.whole_bytes);
    result.parameters += parameters;
    (plan.keeps_whole ? result.kept_whole : result.passing_whole) += whole;
    const double sent = elements * static_cast<double>(plan.gathered_bytes);
    if (plan.keeps_codes) {
      result.kept_whole += sent;
    } else if (!plan.keeps_whole) {
      result.arriving += sent;
    }
    if (plan.slice == plan::Tier::drive) add_stored_slice(plan, share, result);
    if (plan.master_on_drives) {
      result.on_drives += share * slice_bytes;
      result.updated_on_drives += share * slice_bytes;
    }
    if (!plan.trained) continue;
    (plan.keeps_gradient ? result.kept_gradients : result.passing_gradients) +=
        elements * static_cast<double>(plan.gradient_bytes);
    if (!plan.gradient_slice_in_gradient) {
      result.gradient_slice += plan.gradient == plan::Tier::device
                                   ? share * static_cast<double>(plan.gradient_slice_bytes)
                                   : 0;
      result.slice_comes_last = plan.fp8_gradients;
      if (plan.gradient_on_drives)
        result.gradient_on_drives += share * static_cast<double>(plan.gradient_slice_bytes);
    }
    const auto states = [&](int64_t count, optim::Treatment treatment) {
      return static_cast<double>(count) * optim::state_bytes(config.optimizer.type, treatment,
                                                             config.optimizer.momentum,
                                                             config.precision.optimizer_states);
    };
    const int64_t alone = plan.elements - plan.in_matrices - plan.in_blocks;
    const double of_optimizer = share / elements *
                                (states(plan.in_matrices, optim::Treatment::matrices) +
                                 states(plan.in_blocks, optim::Treatment::blocks) +
                                 states(alone, optim::Treatment::elements));
    if (plan.states == plan::Tier::device) result.optimizer += of_optimizer;
    if (plan.states == plan::Tier::drive) {
      result.on_drives += of_optimizer;
      result.updated_on_drives += of_optimizer;
    }
    if (plan.gradient == plan::Tier::device) result.updated_here = true;
  }
  result.on_drives += result.gradient_on_drives;
  return result;
}

double buffers_for_drives(const std::vector<UnitBytes>& units, const RunConfig& config) {
  constexpr double kMib = 1 << 20;
  double moved = 0;
  for (const auto& unit : units) {
    if (unit.updated_here) moved += unit.on_drives;
  }
  double memory = static_cast<double>(config.offload.host_memory) * kMib;
  if (config::activations_on_drives(config))
    memory -= static_cast<double>(config::part_of_host_memory(config));
  return std::min(moved, memory);
}

StateBytes peak_of_states(const std::vector<UnitBytes>& units, const RunConfig& config,
                          const mesh::MeshShape& mesh) {
  const auto& section = config.parallel;
  StateBytes result;
  for (const auto& unit : units) {
    result.parameters += unit.parameters;
    result.gathered += unit.kept_whole;
    result.gradients += unit.kept_gradients;
    result.optimizer += unit.optimizer;
    result.on_drives += unit.on_drives;
  }
  result.optimizer += buffers_for_drives(units, config);
  // The unit at work and the one that is on the way.
  const bool prefetches =
      section.forward_prefetch || section.backward_prefetch != parallel::BackwardPrefetch::none;
  result.gathered += largest_at_once(units, prefetches && section.max_gathered_units > 1);
  const int64_t updating_ranks = config.optimizer.in_backward ? mesh.data_ranks() : 0;
  result.gradients += section.pp != 1 ? all_whole(units) : peak_of_backward(units, updating_ranks);
  return result;
}

}  // namespace tessera::predict
