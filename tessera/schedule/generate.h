// Tables of the known schedules.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/schedule/simulate.h"
#include "tessera/schedule/table.h"

namespace tessera::schedule {

enum class Family {
  gpipe,
  one_f_one_b,
  interleaved,
  looped_bfs,
  zb_h1,
  zb_h2,
  zb_1p,
  zb_2p,
  interleaved_zero_bubble,
  zbv,
  dual_pipe_v,
};

/// Facts about a family; p ranks, v stages on each, m micro-batches, F, I, W the times of one
/// stage's forward and of its backward's input and weight part.
struct FamilyFacts {
  Family family;
  std::string name;      ///< as in PyTorch, where it has one
  std::string bubble;    ///< idle time of a rank in a step, or its share
  std::string memory;    ///< most activations of one stage and micro-batch that a rank holds
  int least_stages = 1;  ///< on each rank
  int most_stages = 1;   ///< 0: any number
};

const std::vector<FamilyFacts>& families();  ///< in the order of Family
const FamilyFacts& facts(Family family);

/// Capitals do not count, nor do hyphens. Throws UserError with every name, and the nearest.
Family parse_family(std::string_view name);

struct ScheduleOptions {
  Family family = Family::one_f_one_b;
  int num_ranks = 1;
  int num_micro_batches = 1;
  int stages_per_rank = 0;  ///< 0: 1, or 2 where a family needs several
  /// Most activations of one stage and micro-batch that a rank may hold; 0: what the family
  /// promises. The automatic families (ZB-1p, ZB-2p) arrange for it.
  double memory_limit = 0;
  double kept_for_weight = 1;  ///< see Schedule
  Times times = {};            ///< for the automatic families
};

/// The table of a family, for any number of micro-batches that it allows: all take any but
/// DualPipeV, which needs two per rank. It passes `check` (check.h). The same options give the same
/// table everywhere. Throws UserError on numbers that the family cannot take, or if it needs more
/// memory than the limit.
Schedule make_schedule(const ScheduleOptions& options);

/// What `stages_per_rank` of the options means for the family: itself, or if it is 0 its default.
int stages_per_rank(const ScheduleOptions& options);

/// The idle share that theory predicts, with one time for all stages and transfers that cost
/// nothing.
struct Prediction {
  std::string formula;
  double bubble = 0;
  bool without_barrier = false;  ///< compare with Simulation::bubble_without_barrier
};

/// The idle share of these options; none where no formula holds: uneven stages, too few
/// micro-batches, weight parts longer than the gaps that they are to fill, or no published one.
std::optional<Prediction> predict_bubble(const ScheduleOptions& options);

}  // namespace tessera::schedule
