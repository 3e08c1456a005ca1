// What a rank's memory holds and what it sends: what the formulas predict, beside what was measured
// (tessera/predict/, docs/estimates.md).
#pragma once

#include <optional>
#include <vector>

#include "tessera/offload/space.h"
#include "tessera/predict/states.h"
#include "tessera/report/summary.h"
#include "tessera/train/assemble.h"

namespace tessera::train {

/// What this rank's plan says of parameters, gradients and states, each at the most.
predict::StateBytes predicted_states(const Run& run);

/// This rank's memory by purpose, each at the most during the steps so far; "at once": all tensors
/// together, on a CPU. Buffers of communication are not predicted (-1).
std::vector<report::PredictedBytes> memory_account(const Run& run);

/// What this rank moved in the last step, along each axis of more than one rank, and to and from drives in each on
/// average, which write behind.
std::vector<report::PredictedBytes> traffic_account(const Run& run);

/// The same as counted since the run began. What groups across axes agree on is left out, and
/// so is saving.
predict::Communication traffic_so_far(const Run& run);

/// What this rank moved to and from its drives since the run began; none where nothing is on drives.
std::optional<offload::SpaceCounters> drives_so_far(const Run& run);
/// Adds what a step moved to the account.
void count_drives(Run& run, const offload::SpaceCounters& step);

}  // namespace tessera::train
