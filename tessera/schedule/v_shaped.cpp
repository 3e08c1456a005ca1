// Families with two stages on each rank, there and back: rank r has stages r and 2 p - 1 - r.
#include <algorithm>
#include <array>
#include <utility>

#include "tessera/schedule/tables.h"

namespace tessera::schedule {
namespace {

enum Way { there, back };

/// Writes a rank's actions: of each kind and stage, micro-batch after micro-batch.
class RankWriter {
 public:
  RankWriter(int rank, int num_ranks) : stages_{rank, 2 * num_ranks - 1 - rank} {}

  void forward(Way way) { add(Kind::forward, way, forwards_[way]++); }

  void input(Way way) {
    waiting_.push_back({Kind::backward_weight, stages_[way], inputs_[way]});
    add(Kind::backward_input, way, inputs_[way]++);
  }

  void backward(Way way) { add(Kind::backward, way, inputs_[way]++); }

  /// Writes the oldest weight part of this stage that waits; false if none does.
  bool weight(Way way) {
    return write_weight(std::ranges::find(waiting_, stages_[way], &Action::stage));
  }

  /// Writes the oldest weight part that waits, of either stage.
  bool oldest_weight() { return write_weight(waiting_.begin()); }

  /// Forward of one stage and backward of the other, at the same time.
  void pair(Way forward_way, Way backward_way) {
    forward(forward_way);
    actions_.back().with_next = true;
    backward(backward_way);
  }

  int num_forwards(Way way) const { return forwards_[way]; }

  std::vector<Action> take() { return std::move(actions_); }

 private:
  void add(Kind kind, Way way, int micro_batch) {
    actions_.push_back({kind, stages_[way], micro_batch});
  }

  bool write_weight(std::vector<Action>::iterator weight) {
    if (weight == waiting_.end()) return false;
    actions_.push_back(*weight);
    waiting_.erase(weight);
    return true;
  }

  std::array<int, 2> stages_;
  std::array<int, 2> forwards_{}, inputs_{};
  std::vector<Action> waiting_;  ///< weight parts whose input part is done, oldest first
  std::vector<Action> actions_;
};

Schedule v_table(const ScheduleOptions& options) {
  return {.num_stages = 2 * options.num_ranks,
          .num_micro_batches = options.num_micro_batches,
          .rank_of_stage = place_stages(options.num_ranks, 2, Placement::v)};
}

std::vector<Action> zbv_rank(int rank, int num_ranks, int num_micro_batches) {
  RankWriter write(rank, num_ranks);
  const int to_last = num_ranks - rank;
  for (int i = 0; i < 2 * to_last - 1; ++i) write.forward(there);
  for (int i = 0; i < rank; ++i) write.forward(back), write.forward(there);
  for (int i = 0; i < to_last; ++i) write.forward(back), write.input(back), write.weight(back);
  while (write.num_forwards(back) < num_micro_batches) {
    if (write.num_forwards(there) < num_micro_batches) write.forward(there);
    write.input(there), write.weight(there);
    write.forward(back), write.input(back), write.weight(back);
  }
  for (int i = 0; i < rank; ++i) write.input(there), write.input(back);
  for (int i = 0; i < to_last; ++i) write.input(there), write.weight(there);
  while (write.weight(back)) continue;
  while (write.weight(there)) continue;
  return write.take();
}

}  // namespace

Schedule zbv(const ScheduleOptions& options) {
  auto schedule = v_table(options);
  const int p = options.num_ranks;
  // The pattern needs 2 p - 1 micro-batches; with fewer, those that are not there are left out.
  const int num_micro_batches = std::max(2 * p - 1, options.num_micro_batches);
  for (int rank = 0; rank < p; ++rank) {
    auto actions = zbv_rank(rank, p, num_micro_batches);
    std::erase_if(actions, [&](const Action& action) {
      return action.micro_batch >= options.num_micro_batches;
    });
    schedule.ranks.push_back(std::move(actions));
    schedule.peak_limit.push_back(2 * std::min(p, options.num_micro_batches));
  }
  return schedule;
}

Schedule dual_pipe_v(const ScheduleOptions& options) {
  auto schedule = v_table(options);
  const int p = options.num_ranks;
  for (int rank = 0; rank < p; ++rank) {
    RankWriter write(rank, p);
    const int behind = p - 1 - rank;  // ranks between this one and the turn of the V
    for (int i = 0; i < 2 * behind; ++i) write.forward(there);
    for (int i = 0; i < rank + 1; ++i) write.forward(there), write.forward(back);
    for (int i = 0; i < behind; ++i) write.input(back), write.oldest_weight(), write.forward(back);
    for (int i = 0; i < options.num_micro_batches - 2 * p + rank + 1; ++i) {
      if (i == 0 && behind == 0) {
        // These two are not at the same time, as in the published order: every other rank waits for
        // this backward.
        write.forward(there), write.backward(back);
      } else {
        write.pair(there, back);
      }
      write.pair(back, there);
    }
    for (int i = 0; i < behind; ++i) write.backward(back), write.pair(back, there);
    // From the middle on, backwards are split, so that gradients leave at once.
    bool split = false;
    const auto backward = [&](Way way) { split ? write.input(way) : write.backward(way); };
    const int middle = (rank + 1) / 2;
    for (int i = 0; i < rank + 1; ++i) {
      split = split || (i == middle && rank % 2 == 1);
      backward(back);
      split = split || (i == middle && rank % 2 == 0);
      backward(there);
    }
    for (int i = 0; i < behind; ++i) write.oldest_weight(), backward(there);
    for (int i = 0; i < rank + 1; ++i) write.oldest_weight();
    schedule.ranks.push_back(write.take());
    schedule.peak_limit.push_back(2 * p + 1);
  }
  return schedule;
}

}  // namespace tessera::schedule
