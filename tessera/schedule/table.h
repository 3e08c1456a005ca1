// A pipeline schedule as data: what each rank computes, in order. One engine executes any of them.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace tessera::schedule {

/// Stages times micro-batches of a table: more would take minutes to arrange.
inline constexpr size_t kMostCells = 1 << 18;

/// What a rank does with one micro-batch in one stage. The backward pass is done at once, or split
/// (Qi et al., Zero Bubble Pipeline Parallelism, ICLR 2024, section 2): its input part makes the
/// gradient that the stage before waits for, its weight part, at any later time, those of the
/// parameters.
enum class Kind { forward, backward, backward_input, backward_weight };

struct Action {
  Kind kind = Kind::forward;
  int stage = 0;
  int micro_batch = 0;
  bool with_next = false;  ///< computed at the same time as the action that follows it: one slot
                           ///< (DeepSeek-AI, DeepSeek-V3, 2024, section 3.2.1: DualPipe)

  bool operator==(const Action&) const = default;
};

/// "3B0": stage 3, backward, micro-batch 0; the letters are F, B, I (input), W (weight).
std::string name_of(const Action& action);

/// "stage 3, backward of micro-batch 0 (3B0)"
std::string describe(const Action& action);

/// Transfers are not in it: they follow from the data. A stage's output goes to the rank of the
/// next stage as soon as it is there, its input's gradient to that of the stage before; receives
/// are posted ahead, a send never waits for its receiver, and what arrives is found by stage and
/// micro-batch, not by order.
struct Schedule {
  std::string name;  ///< "1F1B", or the file it was read from
  int num_stages = 0;
  int num_micro_batches = 0;
  std::vector<int> rank_of_stage;
  std::vector<std::vector<Action>> ranks;  ///< what each rank does, in order
  /// How many activations each rank promises to hold at most (see `peak_activations`, check.h), one
  /// number a rank; empty: no promise.
  std::vector<double> peak_limit;
  /// What remains of an activation between its input part and its weight part.
  double kept_for_weight = 1;

  int num_ranks() const { return static_cast<int>(ranks.size()); }
};

/// How stages are laid on ranks: `loop`, stage s on rank s % p; `v`, there and back, so that the
/// first and the last stage are rank 0's.
enum class Placement { loop, v };

std::vector<int> place_stages(int num_ranks, int stages_per_rank, Placement placement);

/// The earliest slot of every action where each takes one, as ranks that advance in lockstep see
/// it; a pair shares one. The schedule must have passed `check` (check.h).
std::vector<std::vector<int>> slots_of(const Schedule& schedule);

}  // namespace tessera::schedule
