#include "tessera/predict/states.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <utility>

#include "tessera/base/widths.h"
#include "tessera/config/needs.h"
#include "tessera/offload/stored_regions.h"

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
    slices.push_back(std::max(unit.gradient_slice, unit.leaving));
  }
  return whole + largest_neighbours(slices, 2);
}

/// Peak bytes of gradients: backward comes to the units in reverse; one unit's whole gradient is
/// computed while that of the one after it is reduced, and the slices of all that came before stay,
/// unless they go at once: with `updates` all do, else those that go to drives. `adds`: to what the micro-batch before left of all
/// units.
double peak_of_backward(const std::vector<UnitBytes>& units, int64_t ranks, bool updates,
                        bool adds) {
  double peak = 0, slices_so_far = 0, to_come = 0, reduced = 0, all_slices = 0;
  for (const auto& unit : units) all_slices += unit.gradients.count > 0 ? 0 : unit.gradient_slice;
  for (size_t i = units.size(); i-- > 0;) {
    const double slice = units[i].gradient_slice, late = units[i].slice_comes_last ? slice : 0;
    const bool goes = updates || units[i].gradients.count > 0;
    slices_so_far = slice - late + (goes ? 0 : slices_so_far);
    peak =
        std::max(peak, units[i].passing_gradients + reduced + (adds ? all_slices : slices_so_far));
    slices_so_far += std::exchange(to_come, late);
    reduced = gradients_on_the_way(units[i], goes ? ranks : 0);
  }
  return peak;
}

/// `share`: elements of the slice, as gathers take it.
void add_stored_slice(const plan::BufferPlan& plan, double share, UnitBytes& unit) {
  const double bytes = share * static_cast<double>(plan.whole_bytes);
  unit.on_drives += bytes;
  unit.slices.add(bytes);
  if (!plan.trained) return;
  if (plan.master_on_drives) {
    unit.copied_to_drives += bytes;
  } else {
    unit.updated_on_drives += bytes;
    unit.brought_from_drives += bytes;
  }
}

/// Bytes of buffers for pieces that come as a whole.
double buffers_for(const Pieces& pieces, int64_t memory) {
  if (pieces.count == 0) return 0;
  const auto largest =
      static_cast<int64_t>(std::ceil(pieces.largest));  // a share may be less than one
  return static_cast<double>(offload::regions_in_memory(pieces.count, largest, memory)) *
         pieces.largest;
}

}  // namespace

void Pieces::add(double piece) {
  if (piece > 0) add({.count = 1, .bytes = piece, .largest = piece});
}

void Pieces::add(const Pieces& others) {
  count += others.count;
  bytes += others.bytes;
  largest = std::max(largest, others.largest);
}

double gradients_on_the_way(const UnitBytes& unit, int64_t ranks_of_leaving) {
  if (ranks_of_leaving == 1) return 0;  // it has left before the backward goes on
  return unit.passing_gradients + (ranks_of_leaving > 0 ? unit.gradient_slice : unit.leaving);
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
    // A device casts what comes from its host.
    const bool comes = plan.slice == plan::Tier::host && !plan.keeps_copy;
    if (comes && plan.slice_bytes != plan.whole_bytes) {
      result.casting = std::max(result.casting, share * slice_bytes);
    }
    if (plan.slice == plan::Tier::drive) add_stored_slice(plan, share, result);
    const double master = plan.master_on_drives ? share * slice_bytes : 0;
    result.on_drives += master;
    result.updated_on_drives += master;
    if (!plan.trained) continue;
    (plan.keeps_gradient ? result.kept_gradients : result.passing_gradients) +=
        elements * static_cast<double>(plan.gradient_bytes);
    if (!plan.gradient_slice_in_gradient) {
      const double slice = share * static_cast<double>(plan.gradient_slice_bytes);
      (plan.gradient == plan::Tier::device ? result.gradient_slice : result.leaving) += slice;
      result.slice_comes_last = plan.fp8_gradients;
      if (plan.gradient_on_drives) result.gradients.add(slice);
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
      result.states.add(of_optimizer + master);
    }
    if (plan.gradient == plan::Tier::device) result.updated_here = true;
  }
  result.on_drives += result.gradients.bytes;
  return result;
}

double bytes_of_muon(const plan::UnitPlan& unit, double of_matrix) {
  constexpr double kDirection = 2, kResult = 4;  // of a number
  double largest = 0;
  for (const auto& plan : unit.buffers) {
    if (plan.in_matrices == 0 || plan.gradient != plan::Tier::device) continue;
    const auto whole = static_cast<double>(plan.in_matrices);
    const double slice = whole / static_cast<double>(plan.num_slices);
    const double gathered = plan.num_slices > 1 ? whole * kDirection : 0;
    const double widened = plan.slice_bytes < kFloat ? slice * kFloat : 0;
    largest =
        std::max(largest, gathered + slice * (kDirection + kResult) + std::max(of_matrix, widened));
  }
  return largest;
}

double largest_cast(const std::vector<UnitBytes>& units) {
  return units.empty() ? 0 : std::ranges::max(units, {}, &UnitBytes::casting).casting;
}

bool updated_here(const std::vector<UnitBytes>& units) {
  return std::ranges::any_of(units, &UnitBytes::updated_here);
}

DriveBuffers buffers_for_drives(const std::vector<UnitBytes>& units, const RunConfig& config) {
  Pieces slices, gradients, states;
  for (const auto& unit : units) {
    slices.add(unit.slices);
    gradients.add(unit.gradients);
    states.add(unit.states);
  }
  const int64_t part = config::part_of_host_memory(config);
  DriveBuffers buffers{.slices = buffers_for(slices, part),
                       .gradients = buffers_for(gradients, part)};
  if (states.count == 0) return buffers;
  double memory = static_cast<double>(config.offload.host_memory << 20) - buffers.bytes();
  if (config::activations_on_drives(config)) memory -= static_cast<double>(part);
  const int64_t most = config.offload.buffers;
  const double bytes = std::min(states.largest, std::max(1.0, memory / static_cast<double>(most)));
  buffers.parts = offload::parts_in_memory(static_cast<int64_t>(states.bytes),
                                           static_cast<int64_t>(std::ceil(bytes)), most);
  buffers.states = static_cast<double>(buffers.parts) * bytes;
  return buffers;
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
  if (updated_here(units)) result.optimizer += buffers_for_drives(units, config).bytes();
  // The unit at work and the one that is on the way.
  const bool prefetches =
      section.forward_prefetch || section.backward_prefetch != parallel::BackwardPrefetch::none;
  result.gathered +=
      largest_at_once(units, prefetches && section.max_gathered_units > 1) + largest_cast(units);
  const bool adds = config::num_micro_batches(config, mesh) > 1;
  result.gradients += section.pp != 1 ? all_whole(units)
                                      : peak_of_backward(units, mesh.data_ranks(),
                                                         config.optimizer.in_backward, adds);
  return result;
}

}  // namespace tessera::predict
