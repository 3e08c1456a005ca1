// `tessera test`: does this set-up work?
#pragma once

#include "tessera/config/run_config.h"
#include "tessera/launch/rank_environment.h"

namespace tessera::train {

/// On every rank of a run: checks every collective with every averaging operation and dtype against
/// arithmetic, then two training steps of a small model under each placement against one rank
/// alone. Rank 0 prints a line for each. Returns 0, or 1 if anything was wrong. DistError if a rank
/// is lost. Takes seconds.
int self_test(const config::ParallelSection& parallel, const launch::RankEnvironment& environment);

}  // namespace tessera::train
