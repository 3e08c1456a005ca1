#include "tessera/predict/drives.h"

#include <fmt/format.h>

#include <algorithm>

#include "tessera/base/units.h"
#include "tessera/config/needs.h"
#include "tessera/predict/activations.h"
#include "tessera/predict/communication.h"
#include "tessera/predict/states.h"

namespace tessera::predict {
namespace {

std::string amount(double bytes) { return format_bytes(static_cast<int64_t>(bytes)); }

/// Bytes of a stage's micro-batch that are on the drives, and of these still in the buffers.
struct Waiting {
  int stage = 0, micro_batch = 0;
  double in_buffers = 0;
};

/// What blocks keep is written in each forward and read before its backward, but for what was written last.
void add_activations(const config::RunConfig& config, const plan::RankPart& part,
                     DriveTraffic& traffic) {
  const double memory = buffers_for_activations(config, part);
  if (memory == 0) return;
  traffic.activations = in_flight(config, part).away;
  const auto tokens = static_cast<double>(part.micro_batch * config.data.seq_len);
  std::vector<Waiting> waiting;  // the newest is last
  const auto keep_newest = [&](double rest) {
    for (auto each = waiting.rbegin(); each != waiting.rend(); ++each) {
      each->in_buffers = std::min(each->in_buffers, rest);
      rest -= each->in_buffers;
    }
  };
  for (const auto& action : part.actions) {
    const auto& layers = part.stages[static_cast<size_t>(action.stage)].layers;
    double bytes = 0;
    for (int64_t i = layers.begin; i < layers.end; ++i)
      bytes += tokens * block_activations(config, part, i).away;
    if (action.kind == schedule::Kind::forward) {
      traffic.activations_written += bytes;
      waiting.push_back({action.stage, action.micro_batch, bytes});
      keep_newest(memory);
    } else if (action.kind != schedule::Kind::backward_weight) {
      const auto found = std::ranges::find_if(waiting, [&](const Waiting& each) {
        return each.stage == action.stage && each.micro_batch == action.micro_batch;
      });
      const double read = bytes - found->in_buffers;
      traffic.activations_read += read;
      waiting.erase(found);
      keep_newest(memory - std::min(memory, read));  // what is read takes the others' buffers
    }
  }
}

}  // namespace

DriveTraffic drive_traffic(const config::RunConfig& config, const plan::RankPlan& rank) {
  DriveTraffic traffic;
  double slices = 0, brought = 0, gradients = 0;
  for (size_t i = 0; i < rank.units.size(); ++i) {
    const auto unit = unit_bytes(rank.units[i], config);
    traffic.stored += unit.on_drives;
    slices += unit.slices.bytes;
    brought += unit.brought_from_drives;
    if (unit.slices.count > 0) {
      traffic.read_for_passes += num_gathers(config, rank.part, rank.units, i) * unit.slices.bytes;
    }
    traffic.read_for_update += unit.updated_on_drives;
    traffic.written += unit.updated_on_drives + unit.copied_to_drives;
    gradients += unit.gradients.bytes;
  }
  // What of the memory is for slices holds those used last, with which the next pass begins: each
  // backward goes the other way than the forward before it, and an update the way of a forward.
  const auto memory = static_cast<double>(config::part_of_host_memory(config));
  const double kept = std::min(slices, memory);
  const bool in_backward = config.optimizer.in_backward;
  if (kept == slices) {
    traffic.read_for_passes = 0;
    traffic.read_for_update -= brought;
  } else {
    const auto turns = static_cast<double>(2 * rank.part.num_micro_batches - (in_backward ? 0 : 1));
    traffic.read_for_passes = std::max(0.0, traffic.read_for_passes - turns * kept);
    traffic.read_for_update -= in_backward ? brought : std::min(brought, kept);
  }
  // Each micro-batch adds to gradients that those before have left there; an update begins with those that
  // came last.
  const auto sums = static_cast<double>(rank.part.num_micro_batches);
  if (gradients > memory) {
    traffic.read_for_passes += (sums - 1) * gradients;
    traffic.read_for_update += gradients - memory;
  }
  traffic.written += sums * gradients;
  add_activations(config, rank.part, traffic);
  return traffic;
}

std::vector<std::string> drive_lines(const DriveTraffic& traffic) {
  std::vector<std::string> lines;
  if (traffic.stored > 0) {
    const auto passes = traffic.read_for_passes > 0 ? fmt::format("{} for forwards and backwards, ",
                                                                  amount(traffic.read_for_passes))
                                                    : std::string();
    lines.push_back(fmt::format(
        "a rank keeps {} on drives; a step reads {} ({}{} for the update) and writes {}",
        amount(traffic.stored), amount(traffic.read() - traffic.activations_read), passes,
        amount(traffic.read_for_update), amount(traffic.written)));
  }
  if (traffic.activations > 0) {
    lines.push_back(fmt::format(
        "a rank's activations take {} of drives at the most; a step writes {} and reads {}, the "
        "rest being in memory still",
        amount(traffic.activations), amount(traffic.activations_written),
        amount(traffic.activations_read)));
  }
  if (lines.empty()) return lines;
  constexpr double kSteps = 10000, kTb = 1e12;
  lines.push_back(
      fmt::format("wear: 10,000 steps write {:.3g} TB for each rank; compare with the endurance "
                  "(TBW) of the drive",
                  kSteps * traffic.written_in_all() / kTb));
  return lines;
}

}  // namespace tessera::predict
