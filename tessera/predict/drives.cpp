#include "tessera/predict/drives.h"

#include <fmt/format.h>

#include <algorithm>

#include "tessera/base/units.h"
#include "tessera/config/needs.h"
#include "tessera/predict/communication.h"
#include "tessera/predict/states.h"

namespace tessera::predict {
namespace {

std::string amount(double bytes) { return format_bytes(static_cast<int64_t>(bytes)); }

constexpr double kGb = 1e9, kTb = 1e12;

}  // namespace

DriveTraffic drive_traffic(const config::RunConfig& config, const plan::RankPlan& rank) {
  constexpr double kMib = 1 << 20;
  DriveTraffic traffic;
  double slices = 0, brought = 0;
  for (size_t i = 0; i < rank.units.size(); ++i) {
    const auto unit = unit_bytes(rank.units[i], config);
    traffic.stored += unit.on_drives;
    slices += unit.slices_on_drives;
    brought += unit.brought_from_drives;
    if (unit.slices_on_drives > 0) {
      traffic.read_for_passes +=
          num_gathers(config, rank.part, rank.units, i) * unit.slices_on_drives;
    }
    traffic.read_for_update += unit.updated_on_drives;
    traffic.written += unit.updated_on_drives + unit.copied_to_drives;
  }
  // What of the memory is for slices holds those used last, with which the next pass begins: each
  // backward goes the other way than the forward before it, and an update the way of a forward.
  const double kept = std::min(slices, static_cast<double>(config.offload.host_memory) * kMib /
                                           static_cast<double>(config::kinds_on_drives(config)));
  const bool in_backward = config.optimizer.in_backward;
  if (kept == slices) {
    traffic.read_for_passes = 0;
    traffic.read_for_update -= brought;
  } else {
    const auto turns = static_cast<double>(2 * rank.part.num_micro_batches - (in_backward ? 0 : 1));
    traffic.read_for_passes = std::max(0.0, traffic.read_for_passes - turns * kept);
    traffic.read_for_update -= in_backward ? brought : std::min(brought, kept);
  }
  return traffic;
}

double StepTime::seconds() const {
  if (overlaps) return std::max(compute_seconds, transfer_seconds());
  return std::max(compute_seconds, passes_seconds) + update_seconds;
}

bool StepTime::bound_by_drives() const { return transfer_seconds() > compute_seconds; }

StepTime step_time(const DriveTraffic& traffic, const DriveSpeed& speed, double compute_seconds,
                   bool in_backward) {
  const double both = std::min(traffic.read_for_update, traffic.written);
  return {.passes_seconds = traffic.read_for_passes / kGb / speed.read,
          .update_seconds = both / kGb / speed.both +
                            (traffic.read_for_update - both) / kGb / speed.read +
                            (traffic.written - both) / kGb / speed.write,
          .compute_seconds = compute_seconds,
          .overlaps = in_backward};
}

std::vector<std::string> drive_lines(const DriveTraffic& traffic) {
  if (traffic.stored == 0) return {};
  constexpr double kSteps = 10000;
  auto passes = traffic.read_for_passes > 0 ? fmt::format("{} for forwards and backwards, ",
                                                          amount(traffic.read_for_passes))
                                            : std::string();
  return {
      fmt::format("a rank keeps {} on drives; a step reads {} ({}{} for the update) and writes {}",
                  amount(traffic.stored), amount(traffic.read()), passes,
                  amount(traffic.read_for_update), amount(traffic.written)),
      fmt::format("wear: 10,000 steps write {:.3g} TB for each rank; compare with the endurance "
                  "(TBW) of the drive",
                  kSteps * traffic.written / kTb)};
}

std::vector<std::string> step_lines(const DriveTraffic& traffic, const DriveSpeed& speed,
                                    const StepTime& time, int64_t tokens, int64_t num_ranks) {
  constexpr double kDay = 24 * 60 * 60;
  std::vector<std::string> lines;
  lines.push_back(fmt::format(
      "a rank's drives, measured: {:.2f} GB/s read, {:.2f} written, {:.2f} each way at once",
      speed.read, speed.write, speed.both));
  lines.push_back(fmt::format(
      "a step takes at least {}: transfers {} ({} beside computing), computing {} at the speed of "
      "plain matrix products; {} it",
      format_seconds(time.seconds()), format_seconds(time.transfer_seconds()),
      format_seconds(time.overlaps ? time.transfer_seconds() : time.passes_seconds),
      format_seconds(time.compute_seconds),
      time.bound_by_drives() ? "the drives bound" : "computing bounds"));
  if (time.bound_by_drives() && time.compute_seconds > 0) {
    lines.push_back(fmt::format(
        "computing takes as long as the transfers from {} tokens a step on; this run has {}",
        format_count(static_cast<double>(tokens) * time.transfer_seconds() / time.compute_seconds),
        format_count(static_cast<double>(tokens))));
  }
  const double all = traffic.written * static_cast<double>(num_ranks);
  lines.push_back(fmt::format("wear: {} written a step by all ranks, {:.3g} TB a day at that speed",
                              amount(all), all / kTb * kDay / time.seconds()));
  return lines;
}

}  // namespace tessera::predict
