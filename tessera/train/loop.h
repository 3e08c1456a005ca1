// The training loop with everything that watches it.
#pragma once

#include "tessera/launch/rank_environment.h"
#include "tessera/train/assemble.h"

namespace tessera::train {

/// Runs the steps up to train.steps, from the first or from a checkpoint on (checkpoint.resume),
/// and saves checkpoints; rank 0 shows progress and writes metrics.jsonl, TensorBoard events,
/// loss.svg and summary.json to train.run_dir. Prints the summary. Returns the exit code: 0, or
/// kPreemptedExit if a signal ended the run after a save. Collective. Throws what the steps throw;
/// files of the steps so far stay.
int train_loop(Run& run, const launch::RankEnvironment& environment);

}  // namespace tessera::train
