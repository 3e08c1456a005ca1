// ZB-1p and ZB-2p: schedules arranged for measured times and a memory limit (Qi et al., Zero Bubble
// Pipeline Parallelism, ICLR 2024, section 3.1). Like theirs this is a heuristic with a few
// settings, of which all are tried; unlike theirs it goes forward in time, so that a rank knows of
// its neighbours what it could know if it decided while running.
#include <algorithm>
#include <limits>
#include <optional>

#include "tessera/schedule/check.h"
#include "tessera/schedule/tables.h"

namespace tessera::schedule {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr double kRounding = 1e-9;

/// What is weighed when a rank has a choice.
struct Policy {
  /// A weight part is put into a gap of at least this share of its own time; 1: if it fits.
  double least_gap = 1;
  /// A forward gives way to a backward that arrives within this share of the forward's time.
  double patience = 0;
  bool alternates = false;  ///< of a forward and a backward that both can start: the backward, or
                            ///< that which was not the last
};

struct RankState {
  int forwards = 0, inputs = 0, weights = 0;  ///< started
  double free_at = 0;                         ///< end of the last action
  double wakes_at = 0;                        ///< decides next
  bool forward_was_last = false;
  std::vector<Action> actions;
};

class Arrangement {
 public:
  Arrangement(const ScheduleOptions& options, double limit, const Policy& policy)
      : options_(options),
        limit_(limit),
        policy_(policy),
        ranks_(static_cast<size_t>(options.num_ranks)),
        forward_ends_(ranks_.size()),
        input_ends_(ranks_.size()) {}

  std::vector<std::vector<Action>> arrange() {
    for (;;) {
      const auto next = std::ranges::min_element(ranks_, {}, &RankState::wakes_at);
      if (next->wakes_at == kNever) break;
      decide(static_cast<int>(next - ranks_.begin()), next->wakes_at);
    }
    std::vector<std::vector<Action>> actions;
    for (auto& rank : ranks_) actions.push_back(std::move(rank.actions));
    return actions;
  }

 private:
  /// When an action can start: known once what it needs has started, else a lower bound.
  struct Arrival {
    double at = kNever;
    bool known = false;
  };

  RankState& state(int rank) { return ranks_[static_cast<size_t>(rank)]; }

  static double time_of(const std::vector<double>& times, int rank) {
    return times.size() == 1 ? times[0] : times[static_cast<size_t>(rank)];
  }
  double forward_time(int rank) const { return time_of(options_.times.forward, rank); }
  double input_time(int rank) const { return time_of(options_.times.input, rank); }
  double weight_time(int rank) const { return time_of(options_.times.weight, rank); }

  bool forward_fits(const RankState& own) const {
    const double held =
        own.forwards - own.inputs + options_.kept_for_weight * (own.inputs - own.weights);
    return held + 1 <= limit_ + kRounding;
  }

  Arrival next_forward(int rank, double now) {
    const auto& own = state(rank);
    if (own.forwards == options_.num_micro_batches || !forward_fits(own)) return {};
    if (rank == 0) return {0, true};
    const auto& ends = forward_ends_[static_cast<size_t>(rank) - 1];
    const auto micro_batch = static_cast<size_t>(own.forwards);
    if (micro_batch < ends.size()) return {ends[micro_batch] + options_.times.transfer, true};
    const double start = std::max(now, state(rank - 1).free_at);
    return {start + forward_time(rank - 1) + options_.times.transfer, false};
  }

  Arrival next_input(int rank, double now) {
    const auto& own = state(rank);
    const auto micro_batch = static_cast<size_t>(own.inputs);
    if (own.inputs == own.forwards) return {};
    if (rank + 1 == options_.num_ranks)
      return {forward_ends_[static_cast<size_t>(rank)][micro_batch], true};
    const auto& ends = input_ends_[static_cast<size_t>(rank) + 1];
    if (micro_batch < ends.size()) return {ends[micro_batch] + options_.times.transfer, true};
    const double start = std::max(now, state(rank + 1).free_at);
    return {start + input_time(rank + 1) + options_.times.transfer, false};
  }

  void start(int rank, Kind kind, double now) {
    auto& own = state(rank);
    const auto at = static_cast<size_t>(rank);
    if (kind == Kind::forward) {
      own.actions.push_back({kind, rank, own.forwards++});
      own.free_at = now + forward_time(rank);
      forward_ends_[at].push_back(own.free_at);
      if (rank + 1 < options_.num_ranks) wake(rank + 1, now);
    } else if (kind == Kind::backward_input) {
      own.actions.push_back({kind, rank, own.inputs++});
      own.free_at = now + input_time(rank);
      input_ends_[at].push_back(own.free_at);
      if (rank > 0) wake(rank - 1, now);
    } else {
      own.actions.push_back({kind, rank, own.weights++});
      own.free_at = now + weight_time(rank);
    }
    own.forward_was_last = kind == Kind::forward;
    own.wakes_at = own.free_at;
  }

  /// A neighbour has started what this rank may wait for.
  void wake(int rank, double now) {
    auto& own = state(rank);
    own.wakes_at = std::min(own.wakes_at, std::max(now, own.free_at));
  }

  void decide(int rank, double now) {
    auto& own = state(rank);
    const auto forward = next_forward(rank, now), input = next_input(rank, now);
    if (const auto kind = choose(rank, now, forward, input)) {
      start(rank, *kind, now);
      return;
    }
    own.wakes_at = kNever;  // until a neighbour wakes it, or:
    for (const auto& arrival : {forward, input}) {
      if (arrival.known && arrival.at > now + kRounding)
        own.wakes_at = std::min(own.wakes_at, arrival.at);
    }
  }

  /// None: wait.
  std::optional<Kind> choose(int rank, double now, const Arrival& forward, const Arrival& input) {
    const auto& own = state(rank);
    const bool weight_waits = own.weights < own.inputs;
    const bool can_forward = forward.known && forward.at <= now + kRounding;
    const bool can_input = input.known && input.at <= now + kRounding;
    if (can_input) {
      const bool forward_first = can_forward && policy_.alternates && !own.forward_was_last;
      return forward_first ? Kind::forward : Kind::backward_input;
    }
    const double gap_for_weight = policy_.least_gap * weight_time(rank) - kRounding;
    if (can_forward) {
      const double gap = input.at - now;
      const bool soon = gap < policy_.patience * forward_time(rank);
      if (!soon) return Kind::forward;
      if (weight_waits && gap >= gap_for_weight) return Kind::backward_weight;
      // Waiting pays before the first backward, and where enough forwards are ahead already.
      const bool far_ahead = own.forwards - own.inputs > options_.num_ranks - rank;
      if (!(own.inputs == 0 && input.known) && !(own.inputs > 0 && far_ahead)) return Kind::forward;
    }
    const double gap = std::min(can_forward ? kNever : forward.at, input.at) - now;
    const bool no_room = own.forwards < options_.num_micro_batches && !forward_fits(own);
    if (weight_waits && (gap >= gap_for_weight || no_room)) return Kind::backward_weight;
    return std::nullopt;
  }

  const ScheduleOptions& options_;
  double limit_;
  Policy policy_;
  std::vector<RankState> ranks_;
  std::vector<std::vector<double>> forward_ends_, input_ends_;  ///< by rank and micro-batch
};

std::vector<Policy> policies() {
  std::vector<Policy> all;
  for (const double least_gap : {1.0, 0.75, 0.5, 0.25, 0.0}) {
    for (const double patience : {0.0, 0.5, 1.0}) {
      for (const bool alternates : {false, true}) all.push_back({least_gap, patience, alternates});
    }
  }
  return all;
}

}  // namespace

Schedule automatic(const ScheduleOptions& options) {
  const double times_1f1b = options.family == Family::zb_1p ? 1 : 2;
  const double limit =
      options.memory_limit > 0 ? options.memory_limit : times_1f1b * options.num_ranks;
  std::vector<Schedule> candidates;
  for (const auto make : {zb_h1, zb_h2}) {
    candidates.push_back(make(options));
    candidates.back().kept_for_weight = options.kept_for_weight;
    if (std::ranges::max(peak_activations(candidates.back())) > limit + kRounding)
      candidates.pop_back();
  }
  for (const auto& policy : policies()) {
    candidates.push_back({.num_stages = options.num_ranks,
                          .num_micro_batches = options.num_micro_batches,
                          .rank_of_stage = place_stages(options.num_ranks, 1, Placement::loop),
                          .ranks = Arrangement(options, limit, policy).arrange()});
  }
  Schedule* best = nullptr;
  double least = kNever;
  for (auto& candidate : candidates) {
    const double span = simulate(candidate, options.times).longest_span;
    // The first of equal ones on every machine.
    if (span < least * (1 - kRounding)) best = &candidate, least = span;
  }
  best->peak_limit.assign(static_cast<size_t>(options.num_ranks), limit);
  return std::move(*best);
}

}  // namespace tessera::schedule
