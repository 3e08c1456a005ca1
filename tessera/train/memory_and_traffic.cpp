#include "tessera/train/memory_and_traffic.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "tessera/predict/activations.h"
#include "tessera/predict/communication.h"
#include "tessera/predict/drives.h"
#include "tessera/predict/step_memory.h"

namespace tessera::train {
namespace {

std::vector<predict::UnitBytes> bytes_by_unit(const Run& run) {
  std::vector<predict::UnitBytes> units;
  for (const auto& unit : run.parallel.units()) {
    plan::UnitPlan plan;
    for (const auto& buffer : unit.buffers()) plan.buffers.push_back(buffer.plan());
    units.push_back(predict::unit_bytes(plan, run.config));
  }
  return units;
}

}  // namespace

predict::StateBytes predicted_states(const Run& run) {
  return predict::peak_of_states(bytes_by_unit(run), run.config, run.plan.mesh);
}

std::vector<report::PredictedBytes> memory_account(const Run& run) {
  const auto predicted = predicted_states(run);
  const auto measured = run.parallel.memory();
  int64_t buffers = 0;
  for (const auto& axis : run.axes) buffers += axis.buffer_bytes();
  int64_t on_drives = 0;
  const int64_t for_drives = run.parallel.memory_for_drives();
  int64_t buffers_at_once = for_drives;  // for all that is on drives
  if (const auto* states = run.optimizer.stored()) {
    on_drives += states->stored_bytes();
    buffers_at_once += states->memory_bytes();
  }
  for (const auto* regions : {run.parallel.stored(), run.parallel.stored_gradients()})
    on_drives += regions == nullptr ? 0 : regions->stored_bytes();
  if (run.activations)
    buffers_at_once += std::min(run.activations->memory_bytes(), run.activations->most_bytes());
  const auto& own = run.rank_plan();
  const auto part = [](const char* name, double bytes, int64_t found) {
    return report::PredictedBytes{name, static_cast<int64_t>(bytes), found};
  };
  std::vector<report::PredictedBytes> parts{
      part("parameters", predicted.parameters, measured.parameters),
      part("gathered", predicted.gathered, measured.peak_gathered),
      part("gradients", predicted.gradients, measured.peak_gradients),
      part("optimizer", predicted.optimizer, run.optimizer.state_bytes() + for_drives),
      part("activations",
           run.autocast ? -1
                        : static_cast<double>(predict::kept_activation_bytes(run.config, own.part)),
           run.peak_activations),
      part("communication", -1, buffers)};
  if (on_drives > 0) parts.push_back(part("on drives", predicted.on_drives, on_drives));
  if (run.activations) {
    parts.push_back(part("activations on drives", predict::in_flight(run.config, own.part).away,
                         run.activations->most_bytes()));
  }
  if (run.peak_tensors > 0) {
    const auto device = run.device.is_cpu() ? predict::this_cpu() : predict::Device{};
    const auto at_once = step_memory(run.config, own, device).peak().total();
    parts.push_back(part("at once", at_once, run.peak_tensors + buffers_at_once));
  }
  return parts;
}

predict::Communication traffic_so_far(const Run& run) {
  predict::Communication moved;
  for (const auto& axis : run.axes) {
    if (axis.axes().size() != 1 || axis.channel() == mesh::kSaveChannel) continue;
    const auto counters = axis.counters();
    auto& traffic = moved.along(axis.axes().front());
    traffic.all_reduce += static_cast<double>(counters.all_reduce.bytes);
    traffic.all_gather += static_cast<double>(counters.all_gather.bytes);
    traffic.reduce_scatter += static_cast<double>(counters.reduce_scatter.bytes);
    const bool of_experts = axis.axes().front() == mesh::AxisName::ep;  // rows, not sums
    (of_experts ? traffic.sent : traffic.all_to_all) +=
        static_cast<double>(counters.all_to_all.bytes);
    traffic.sent += static_cast<double>(counters.sent_bytes);
  }
  return moved;
}

std::optional<offload::SpaceCounters> drives_so_far(const Run& run) {
  std::optional<offload::SpaceCounters> counters;
  const auto add = [&](const auto* stored) {
    if (stored == nullptr) return;
    if (!counters) counters.emplace();
    counters->add(stored->space().counters());
  };
  add(run.optimizer.stored());
  add(run.parallel.stored());
  add(run.parallel.stored_gradients());
  add(run.activations.get());
  return counters;
}

void count_drives(Run& run, const offload::SpaceCounters& step) {
  if (!run.drives) {
    run.drives = DriveSteps{.last = step, .after_first = {}};
    return;
  }
  run.drives->last = step;
  run.drives->after_first.add(step);
  ++run.drives->num_after_first;
}

std::vector<report::PredictedBytes> traffic_account(const Run& run) {
  const auto& mesh = run.plan.mesh;
  const auto predicted = predict::communication(run.config, run.rank_plan());
  std::vector<report::PredictedBytes> parts;
  const auto add = [&](const char* name, int64_t ranks, const predict::Traffic& expected,
                       const predict::Traffic& found) {
    if (ranks == 1) return;
    parts.push_back(
        {name, static_cast<int64_t>(expected.total()), static_cast<int64_t>(found.total())});
  };
  add("dp", mesh.data_ranks(), predicted.dp(), run.traffic.dp());
  add("ep", mesh.ep, predicted.ep(), run.traffic.ep());
  add("tp", mesh.tp, predicted.tp(), run.traffic.tp());
  add("pp", mesh.pp, predicted.pp(), run.traffic.pp());
  if (!run.drives) return parts;
  const auto drives = predict::drive_traffic(run.config, run.rank_plan());
  const auto& [last, after_first, steps] = *run.drives;
  const auto counted = steps > 0 ? after_first : last;
  const auto count = std::max<int64_t>(1, steps);
  parts.push_back({"drives read", static_cast<int64_t>(drives.read()), counted.read_bytes / count});
  parts.push_back({"drives written", static_cast<int64_t>(drives.written_in_all()),
                   counted.written_bytes / count});
  return parts;
}

}  // namespace tessera::train
