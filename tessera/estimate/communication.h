// What a rank's collectives and transfers move in one step, along each dimension of the mesh.
#pragma once

#include <vector>

#include "tessera/config/run_config.h"
#include "tessera/estimate/buffers.h"
#include "tessera/estimate/rank_part.h"

namespace tessera::estimate {

/// Bytes of the whole tensors (comm/counters.h): outputs of all-gathers, inputs of reduce-scatters.
struct Traffic {
  double all_reduce = 0, all_gather = 0, reduce_scatter = 0;
  double sent = 0;  ///< to the neighbours in the pipeline; as much comes from them

  double total() const { return all_reduce + all_gather + reduce_scatter + sent; }
};
Traffic operator-(const Traffic& after, const Traffic& before);

/// What one rank moves in one step. A few numbers a step (losses, counts, norms) are left out.
struct Communication {
  Traffic dp;  ///< gradients and parameters
  Traffic tp;  ///< activations, three numbers a token of the loss, gradients of what ranks share
  Traffic pp;  ///< activations and their gradients between stages, the gradient of a tied table
};
Communication operator-(const Communication& after, const Communication& before);

/// `units` as plan_units has them. docs/estimates.md has the formulas.
Communication communication(const config::RunConfig& config, const RankPart& part,
                            const std::vector<UnitPlan>& units);

}  // namespace tessera::estimate
