// How long a step takes that keeps something on drives, and what it waits for.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/config/run_config.h"
#include "tessera/plan/run_plan.h"
#include "tessera/predict/drives.h"

namespace tessera::predict {

/// GB/s of a rank's drives, while all ranks use theirs.
struct DriveSpeed {
  double read = 0, write = 0;
  double both = 0;          ///< each way, while as much is read as written
  double seconds_lost = 0;  ///< of a rank's computing, for a GB that is moved meanwhile
};

/// What a rank's computing takes, as measured with nothing on drives.
struct ComputeSpeed {
  plan::LayerCosts layers;  ///< seconds of a forward and backward of one micro-batch
  double update = 0;        ///< seconds of the optimizer for one number
  /// Seconds of a step in which processors that compute bring parameters and gradients from rank to rank.
  double exchange = 0;
};

struct StepTime {
  double seconds = 0;
  double compute_seconds =
      0;  ///< of that, forwards, backwards and updates, a pipeline's bubble included
  double update_seconds = 0;    ///< of these, updates
  double transfer_seconds = 0;  ///< the drives are busy

  double wait_seconds() const { return seconds - compute_seconds; }
  bool bound_by_drives() const { return transfer_seconds > compute_seconds; }
};

/// A step in the steady state: units run one after the other, and what buffers have room for is read
/// ahead and written behind meanwhile. Drives move at one speed, and one thing at a time. What they take of
/// computing is added to that. `traffic`: of that rank.
StepTime step_time(const config::RunConfig& config, const plan::RankPlan& rank,
                   const DriveTraffic& traffic, const DriveSpeed& speed,
                   const ComputeSpeed& computing, double bubble = 0);

/// What a step takes, and what it costs: a step of `tokens` that writes so much on each rank.
std::vector<std::string> step_lines(const DriveTraffic& traffic, const DriveSpeed& speed,
                                    const StepTime& time, int64_t tokens, int64_t num_ranks);

}  // namespace tessera::predict
