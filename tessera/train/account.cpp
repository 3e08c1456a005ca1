#include "tessera/train/account.h"

#include <fmt/format.h>

#include <string>

#include "tessera/estimate/activations.h"
#include "tessera/estimate/buffers.h"
#include "tessera/estimate/communication.h"
#include "tessera/estimate/rank_part.h"
#include "tessera/estimate/step_memory.h"

namespace tessera::train {
namespace {

estimate::BufferPlan plan_of(const parallel::FlatBuffer& buffer) {
  const auto& options = buffer.options();
  const auto bytes = [](const torch::Tensor& tensor) {
    return static_cast<int64_t>(tensor.element_size());
  };
  estimate::BufferPlan plan{.num_slices = options.num_slices,
                            .trained = buffer.trained(),
                            .whole_bytes = bytes(buffer.whole.tensor()),
                            .slice_bytes = bytes(buffer.slice()),
                            .keeps_whole = options.keeps_whole,
                            .keeps_gradient = options.keeps_gradient,
                            .keeps_copy = options.keeps_copy,
                            .slice_in_whole = buffer.slice_in_whole(),
                            .gradient_slice_in_gradient = buffer.gradient_slice_in_gradient()};
  for (const auto& entry : buffer.entries()) plan.elements += entry.parameter.numel();
  if (plan.trained) plan.gradient_bytes = bytes(buffer.gradient.tensor());
  return plan;
}

std::vector<estimate::UnitBytes> bytes_by_unit(const Run& run) {
  std::vector<estimate::UnitBytes> units;
  for (const auto& unit : run.parallel.units()) {
    estimate::UnitPlan plan;
    for (const auto& buffer : unit.buffers()) plan.buffers.push_back(plan_of(buffer));
    units.push_back(bytes_of(plan, run.config));
  }
  return units;
}

/// What this rank has of the model.
estimate::RankPart part_of(const Run& run) {
  auto config = run.config;
  config.parallel.num_ranks = run.world.size();
  const auto parts =
      estimate::rank_parts(config, run.model->shape(), estimate::mesh_of(config), run.plan);
  return parts[static_cast<size_t>(run.pipeline_axis.rank())];
}


/// The most that tensors are predicted to take at once.
double predicted_peak(const Run& run, const estimate::RankPart& part) {
  const auto device = estimate::this_cpu();
  const auto units = estimate::plan_units(run.config, part, device.is_host);
  return step_memory(run.config, part, units, device).peak().total();
}

}  // namespace

std::vector<report::PredictedBytes> memory_account(const Run& run) {
  const auto predicted = estimate::peak_of_states(bytes_by_unit(run), run.config.parallel);
  const auto measured = run.parallel.memory();
  int64_t buffers = 0;
  for (const auto& axis : run.axes) buffers += axis.buffer_bytes();
  const auto own = part_of(run);
  const auto part = [](const char* name, double bytes, int64_t found) {
    return report::PredictedBytes{name, static_cast<int64_t>(bytes), found};
  };
  std::vector<report::PredictedBytes> parts{
      part("parameters", predicted.parameters, measured.parameters),
      part("gathered", predicted.gathered, measured.peak_gathered),
      part("gradients", predicted.gradients, measured.peak_gradients),
      part("optimizer", predicted.optimizer, run.optimizer.state_bytes()),
      part(
          "activations",
          run.autocast ? -1 : static_cast<double>(estimate::kept_activation_bytes(run.config, own)),
          run.peak_activations),
      part("communication", -1, buffers)};
  if (run.peak_tensors > 0) {
    parts.push_back(part("at once", predicted_peak(run, own), run.peak_tensors));
  }
  return parts;
}

estimate::Communication traffic_so_far(const Run& run) {
  estimate::Communication moved;
  for (const auto& axis : run.axes) {
    if (axis.axes().size() != 1 || axis.channel() == mesh::kSaveChannel) continue;
    const auto counters = axis.counters();
    auto& traffic = moved.along(axis.axes().front());
    traffic.all_reduce += static_cast<double>(counters.all_reduce.bytes);
    traffic.all_gather += static_cast<double>(counters.all_gather.bytes);
    traffic.reduce_scatter += static_cast<double>(counters.reduce_scatter.bytes);
    traffic.sent += static_cast<double>(counters.sent_bytes);
  }
  return moved;
}

std::vector<report::PredictedBytes> traffic_account(const Run& run) {
  const auto own = part_of(run);
  const auto predicted = estimate::communication(
      run.config, own, estimate::plan_units(run.config, own, run.device.is_cpu()));
  std::vector<report::PredictedBytes> parts;
  const auto add = [&](const char* name, int64_t ranks, const estimate::Traffic& expected,
                       const estimate::Traffic& found) {
    if (ranks == 1) return;
    parts.push_back(
        {name, static_cast<int64_t>(expected.total()), static_cast<int64_t>(found.total())});
  };
  add("dp", own.mesh.data_ranks(), predicted.dp(), run.traffic.dp());
  add("tp", own.mesh.tp, predicted.tp(), run.traffic.tp());
  add("pp", own.mesh.pp, predicted.pp(), run.traffic.pp());
  return parts;
}

}  // namespace tessera::train
