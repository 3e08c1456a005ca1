// How long a schedule takes: every action's start and end, from the times of forward, backward and
// transfer.
#pragma once

#include <string>
#include <vector>

#include "tessera/schedule/table.h"

namespace tessera::schedule {

/// Seconds, or any other unit. One value per stage, or one for all.
struct Times {
  std::vector<double> forward = {1};
  std::vector<double> input = {1};   ///< the input part of a backward
  std::vector<double> weight = {1};  ///< its weight part; a whole backward takes both
  double transfer = 0;  ///< from one rank to another, after the action whose result is sent; it
                        ///< occupies neither rank, and none is needed within one
  double pair = 0;      ///< of a forward and a backward at the same time; 0: as long as both
                        ///< after each other
};

/// Throws UserError, which begins with `name`, unless each list has one value or one per stage, all
/// are finite and none is negative.
void check_times(const Times& times, int num_stages, const std::string& name);

struct Span {
  double start = 0, end = 0;
};

struct Simulation {
  std::vector<std::vector<Span>> spans;  ///< as Schedule::ranks; a pair's two are the same
  std::vector<double> busy;              ///< of each rank
  /// From the first start of any rank to the last end of any: what a step takes whose optimizer
  /// waits for all ranks.
  double makespan = 0;
  /// The longest time any rank takes from its own first start to its own last end: what a step
  /// takes in the long run where no rank waits for others between steps. The cost by which Qi et
  /// al. (Zero Bubble Pipeline Parallelism, ICLR 2024, Table 5) count bubbles; their optimizer step
  /// has no barrier (section 4).
  double longest_span = 0;

  double bubble() const;          ///< idle share of all ranks over the makespan
  double bubble(int rank) const;  ///< idle share of one rank over the makespan
  /// 1 - mean busy time / longest span.
  double bubble_without_barrier() const;
};

/// Each rank does its actions in order, each as soon as what it needs has arrived. O(actions).
/// Throws UserError if the table does not pass `check` (check.h), or the times not `check_times`.
Simulation simulate(const Schedule& schedule, const Times& times = {});

}  // namespace tessera::schedule
