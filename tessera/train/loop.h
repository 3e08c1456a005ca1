// The training loop with everything that watches it.
#pragma once

#include "tessera/launch/rank_environment.h"
#include "tessera/train/assemble.h"

namespace tessera::train {

/// Runs train.steps steps; rank 0 shows progress and writes metrics.jsonl, TensorBoard events,
/// loss.svg and summary.json to train.run_dir. Prints the summary. Collective. Throws what the
/// steps throw; files of the steps so far stay.
void train_loop(Run& run, const launch::RankEnvironment& environment);

}  // namespace tessera::train
