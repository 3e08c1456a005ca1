// What `tessera generate`, `tessera chat` and the comparison of `tessera export` do, on every rank.
#pragma once

#include "tessera/inference/request.h"
#include "tessera/launch/rank_environment.h"

namespace tessera::inference {

/// Answers on rank 0's standard output; every rank computes a part (tensor parallelism). Returns the
/// exit code. UserError: what Session refuses. Collective.
int answer(const Request& request, const launch::RankEnvironment& environment);

}  // namespace tessera::inference
