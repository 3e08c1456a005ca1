// A proof, before anything runs, that a table can be executed: complete, free of deadlocks, within
// its memory.
#pragma once

#include <vector>

#include "tessera/schedule/table.h"

namespace tessera::schedule {

/// The most activations that each rank holds at once. The unit is what one stage keeps of one
/// micro-batch. A forward takes one when it starts; a backward gives it back when it ends, and
/// where that is split the input part gives back all but `kept_for_weight`, the weight part the
/// rest. Depends on the order alone, not on how long anything takes.
std::vector<double> peak_activations(const Schedule& schedule);

/// Proves of `schedule` that
/// - every stage does every micro-batch once, forward and backward (whole, or both parts), on its
///   rank, and two actions at the same time are a forward and a backward;
/// - no action waits for itself, whatever the times are: a backward waits for its forward and the
///   next stage's backward, a weight part for its input part, a forward for the stage before, and
///   everything for what stands before it on its rank;
/// - no rank holds more activations than it promises (`Schedule::peak_limit`).
/// Throws UserError with one line that names the first action that is wrong, or a shortest cycle.
/// O(actions) for a good table.
void check(const Schedule& schedule);

}  // namespace tessera::schedule
