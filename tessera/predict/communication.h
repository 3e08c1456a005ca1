// What a rank's collectives and transfers move in one step, along each axis of the mesh.
#pragma once

#include <array>
#include <vector>

#include "tessera/base/axes.h"
#include "tessera/config/run_config.h"
#include "tessera/plan/run_plan.h"

namespace tessera::predict {

/// Bytes of the whole tensors (comm/counters.h): outputs of all-gathers, inputs of reduce-scatters.
struct Traffic {
  double all_reduce = 0, all_gather = 0, reduce_scatter = 0;
  double all_to_all = 0;  ///< of sums that travel in 8 bits
  /// To single ranks, from which as much comes: the neighbours in the pipeline, or, as the mean of
  /// all, those of the experts (what stays with the rank's own counts, too).
  double sent = 0;

  double total() const { return all_reduce + all_gather + reduce_scatter + all_to_all + sent; }
};
Traffic operator-(const Traffic& after, const Traffic& before);

Traffic operator+(const Traffic& a, const Traffic& b);

/// What one rank moves in one step along each axis. A few numbers a step (losses, counts, norms)
/// are left out.
struct Communication {
  std::array<Traffic, mesh::kNumAxes> by_axis;

  Traffic& along(mesh::AxisName axis) { return by_axis[static_cast<size_t>(axis)]; }
  const Traffic& along(mesh::AxisName axis) const { return by_axis[static_cast<size_t>(axis)]; }

  /// Gradients and parameters, along dp_replicate and dp_shard, those of experts along theirs.
  Traffic dp() const;
  /// Tokens' rows on their way to experts and back, their gradients, and counts of them.
  const Traffic& ep() const { return along(mesh::AxisName::ep); }
  /// Activations, three numbers a token of the loss, gradients of what ranks share; with those of etp.
  Traffic tp() const;
  /// Activations and their gradients between stages, the gradient of a tied table.
  const Traffic& pp() const { return along(mesh::AxisName::pp); }
};
Communication operator-(const Communication& after, const Communication& before);

/// How often a unit is gathered in a step, as the engine frees it: when another stage or micro-batch
/// comes, or where it is not resharded after forward, when no backward is to come. `unit`: which of the
/// rank's units; the last one stays if its backward is next, one in and before which nothing is trained has
/// no backward.
double num_gathers(const config::RunConfig& config, const plan::RankPart& part,
                   const std::vector<plan::UnitPlan>& units, size_t unit);

/// docs/estimates.md has the formulas.
Communication communication(const config::RunConfig& config, const plan::RankPlan& rank);

}  // namespace tessera::predict
