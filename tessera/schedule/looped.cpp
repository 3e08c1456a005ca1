// Families on looped stages (s on rank s % p). All of them are one weave of the forwards and the
// backwards of a rank; they differ in the order of each, how many forwards go ahead, and how many
// weight parts stay behind.
#include <algorithm>
#include <optional>

#include "tessera/schedule/tables.h"

namespace tessera::schedule {
namespace {

struct Weave {
  std::vector<Action> forwards, backwards;
  int ahead = 0;              ///< forwards before they alternate with backwards
  std::optional<int> behind;  ///< split: weight parts that wait while they alternate
};

std::vector<Action> woven(const Weave& weave) {
  std::vector<Action> actions, weights;
  size_t num_weights = 0;
  const auto num_forwards = weave.forwards.size();
  const auto ahead = std::min(static_cast<size_t>(weave.ahead), num_forwards);
  actions.assign(weave.forwards.begin(),
                 weave.forwards.begin() + static_cast<std::ptrdiff_t>(ahead));
  for (size_t i = 0; i < weave.backwards.size(); ++i) {
    if (ahead + i < num_forwards) actions.push_back(weave.forwards[ahead + i]);
    auto backward = weave.backwards[i];
    if (weave.behind) backward.kind = Kind::backward_input;
    actions.push_back(backward);
    if (!weave.behind) continue;
    backward.kind = Kind::backward_weight;
    weights.push_back(backward);
    if (i >= static_cast<size_t>(*weave.behind)) actions.push_back(weights[num_weights++]);
  }
  actions.insert(actions.end(), weights.begin() + static_cast<std::ptrdiff_t>(num_weights),
                 weights.end());
  return actions;
}

/// Where each group of micro-batches begins, and the end: as even as can be, at least p in each.
std::vector<int> group_bounds(int num_micro_batches, int num_ranks) {
  const int groups = std::max(1, num_micro_batches / num_ranks);
  std::vector<int> bounds{0};
  for (int i = 0; i < groups; ++i) {
    const int rest = num_micro_batches % groups;
    bounds.push_back(bounds.back() + num_micro_batches / groups + (i < rest ? 1 : 0));
  }
  return bounds;
}

/// A rank's actions of one kind, group by group and in each stage by stage.
std::vector<Action> in_groups(const ScheduleOptions& options, int rank, Kind kind) {
  const auto bounds = group_bounds(options.num_micro_batches, options.num_ranks);
  std::vector<Action> actions;
  for (size_t group = 0; group + 1 < bounds.size(); ++group) {
    for (int i = 0; i < options.stages_per_rank; ++i) {
      const int turn = kind == Kind::forward ? i : options.stages_per_rank - 1 - i;
      const int stage = turn * options.num_ranks + rank;
      for (int micro_batch = bounds[group]; micro_batch < bounds[group + 1]; ++micro_batch)
        actions.push_back({kind, stage, micro_batch});
    }
  }
  return actions;
}

int largest_group(const ScheduleOptions& options) {
  return group_bounds(options.num_micro_batches, options.num_ranks)[1];
}

/// What a rank does, and the peak that follows from it.
struct Part {
  Weave weave;
  int peak = 0;
};

template <typename PartOfRank>
Schedule looped(const ScheduleOptions& options, const PartOfRank& part_of_rank) {
  Schedule schedule{
      .num_stages = options.num_ranks * options.stages_per_rank,
      .num_micro_batches = options.num_micro_batches,
      .rank_of_stage = place_stages(options.num_ranks, options.stages_per_rank, Placement::loop)};
  const int all = options.stages_per_rank * options.num_micro_batches;
  for (int rank = 0; rank < options.num_ranks; ++rank) {
    const Part part = part_of_rank(rank);
    schedule.ranks.push_back(woven(part.weave));
    schedule.peak_limit.push_back(std::min(all, part.peak));
  }
  return schedule;
}

Weave grouped(const ScheduleOptions& options, int rank, int ahead,
              std::optional<int> behind = std::nullopt) {
  return {in_groups(options, rank, Kind::forward), in_groups(options, rank, Kind::backward), ahead,
          behind};
}

}  // namespace

Schedule gpipe(const ScheduleOptions& options) {
  const int all = options.num_micro_batches;
  return looped(options, [&](int rank) { return Part{grouped(options, rank, all), all}; });
}

Schedule one_f_one_b(const ScheduleOptions& options) {
  return looped(options, [&](int rank) {
    const int ahead = options.num_ranks - 1 - rank;
    return Part{grouped(options, rank, ahead), ahead + 1};
  });
}

Schedule interleaved(const ScheduleOptions& options) {
  return looped(options, [&](int rank) {
    const int ahead =
        (options.stages_per_rank - 1) * largest_group(options) + 2 * (options.num_ranks - 1 - rank);
    return Part{grouped(options, rank, ahead), ahead + 1};
  });
}

Schedule looped_bfs(const ScheduleOptions& options) {
  const int all = options.stages_per_rank * options.num_micro_batches;
  return looped(options, [&](int rank) {
    Weave weave{.ahead = all};
    for (int turn = 0; turn < options.stages_per_rank; ++turn) {
      for (int i = 0; i < options.num_micro_batches; ++i)
        weave.forwards.push_back({Kind::forward, turn * options.num_ranks + rank, i});
    }
    // Backwards go in reverse, as PyTorch has them.
    weave.backwards.assign(weave.forwards.rbegin(), weave.forwards.rend());
    for (auto& action : weave.backwards) action.kind = Kind::backward;
    return Part{weave, all};
  });
}

Schedule zb_h1(const ScheduleOptions& options) {
  return looped(options, [&](int rank) {
    const int ahead = options.num_ranks - 1 - rank;
    return Part{grouped(options, rank, ahead, rank), options.num_ranks};
  });
}

Schedule zb_h2(const ScheduleOptions& options) {
  return looped(options, [&](int rank) {
    const int ahead = 2 * (options.num_ranks - 1 - rank);
    return Part{grouped(options, rank, ahead, 2 * rank), 2 * options.num_ranks - 1};
  });
}

Schedule interleaved_zero_bubble(const ScheduleOptions& options) {
  return looped(options, [&](int rank) {
    const int first_stages = (options.stages_per_rank - 1) * largest_group(options);
    const int ahead = first_stages + options.num_ranks - 1 - rank;
    return Part{grouped(options, rank, ahead, rank), first_stages + options.num_ranks};
  });
}

}  // namespace tessera::schedule
