// What a rank moves to and from its drives in one step, and what that means for the step.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/config/run_config.h"
#include "tessera/plan/run_plan.h"

namespace tessera::predict {

/// Bytes of one rank.
struct DriveTraffic {
  double stored = 0;           ///< that lie there all the time
  double read_for_passes = 0;  ///< slices, for forwards and backwards
  double read_for_update = 0;  ///< states, and what is updated
  double written = 0;          ///< after the update
  double activations = 0;      ///< that lie there between forward and backward, at the most
  double activations_written = 0, activations_read = 0;
  double read() const { return read_for_passes + read_for_update + activations_read; }
  double written_in_all() const { return written + activations_written; }
};

/// What stays in the buffers is not read again: between a forward and its backward the last units, then
/// the first ones.
DriveTraffic drive_traffic(const config::RunConfig& config, const plan::RankPlan& rank);

/// GB/s of a rank's drives, while all ranks use theirs.
struct DriveSpeed {
  double read = 0, write = 0;
  double both = 0;  ///< each way, while as much is read as written
};

struct StepTime {
  double passes_seconds = 0;   ///< reads that go on beside computing
  double update_seconds = 0;   ///< reads and writes of the update
  double compute_seconds = 0;  ///< at the speed of plain matrix products: at least
  bool overlaps = false;       ///< the update goes on beside computing, too

  double transfer_seconds() const { return passes_seconds + update_seconds; }
  double seconds() const;
  bool bound_by_drives() const;
};

/// `compute_seconds`: of the step.
StepTime step_time(const DriveTraffic& traffic, const DriveSpeed& speed, double compute_seconds,
                   bool in_backward);

/// What is moved, in a line or two.
std::vector<std::string> drive_lines(const DriveTraffic& traffic);
/// What it takes, and what it costs: a step of `tokens`.
std::vector<std::string> step_lines(const DriveTraffic& traffic, const DriveSpeed& speed,
                                    const StepTime& time, int64_t tokens, int64_t num_ranks);

}  // namespace tessera::predict
