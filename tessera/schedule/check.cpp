#include "tessera/schedule/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "tessera/base/error.h"
#include "tessera/schedule/graph.h"

namespace tessera::schedule {
namespace {

/// How often each kind of work of a stage and a micro-batch stands in the table.
using Counts = std::array<int, 4>;

bool is_backward(const Action& action) {
  return action.kind == Kind::backward || action.kind == Kind::backward_input;
}

void check_place(const Schedule& schedule, int rank, const Action& action) {
  if (action.stage < 0 || action.stage >= schedule.num_stages) {
    user_error("{}: rank {}: {}: expected a stage in [0, {}]", schedule.name, rank, name_of(action),
               schedule.num_stages - 1);
  }
  if (action.micro_batch < 0 || action.micro_batch >= schedule.num_micro_batches) {
    user_error("{}: rank {}: {}: expected a micro-batch in [0, {}]; there are {}", schedule.name,
               rank, name_of(action), schedule.num_micro_batches - 1, schedule.num_micro_batches);
  }
  const int owner = schedule.rank_of_stage[static_cast<size_t>(action.stage)];
  if (owner != rank) {
    user_error("{}: rank {}: {}: stage {} is on rank {}; put it there", schedule.name, rank,
               name_of(action), action.stage, owner);
  }
}

void check_pair(const Schedule& schedule, int rank, size_t first) {
  const auto& actions = schedule.ranks[static_cast<size_t>(rank)];
  const bool two =
      first + 1 < actions.size() && !actions[first + 1].with_next &&
      (actions[first].kind == Kind::forward) != (actions[first + 1].kind == Kind::forward) &&
      (is_backward(actions[first]) || is_backward(actions[first + 1]));
  if (two) return;
  user_error("{}: rank {}: {}: what is computed at the same time is one forward and one backward",
             schedule.name, rank, name_of(actions[first]));
}

void check_counts(const Schedule& schedule, const Action& of, const Counts& counts) {
  const auto name = [&](Kind kind) { return name_of({kind, of.stage, of.micro_batch}); };
  for (const auto kind :
       {Kind::forward, Kind::backward, Kind::backward_input, Kind::backward_weight}) {
    const int count = counts[static_cast<size_t>(kind)];
    if (count > 1)
      user_error("{}: {} is there {} times; expected once", schedule.name, name(kind), count);
  }
  const auto [forward, backward, input, weight] = counts;
  if (forward == 0) user_error("{}: {} is missing", schedule.name, name(Kind::forward));
  if (backward == 0 && input == 0) {
    user_error("{}: {} is missing (or {} and {})", schedule.name, name(Kind::backward),
               name(Kind::backward_input), name(Kind::backward_weight));
  }
  if (backward == 1 && input + weight > 0) {
    user_error("{}: {} is there beside {}; expected the whole backward or its two parts",
               schedule.name, name(Kind::backward),
               name(input > 0 ? Kind::backward_input : Kind::backward_weight));
  }
  if (backward == 0 && weight == 0) {
    user_error("{}: {} is missing: {} is the input part alone", schedule.name,
               name(Kind::backward_weight), name(Kind::backward_input));
  }
}

void check_complete(const Schedule& schedule) {
  const auto num_micro_batches = static_cast<size_t>(schedule.num_micro_batches);
  std::vector<Counts> counts(static_cast<size_t>(schedule.num_stages) * num_micro_batches);
  for (int rank = 0; rank < schedule.num_ranks(); ++rank) {
    const auto& actions = schedule.ranks[static_cast<size_t>(rank)];
    if (actions.empty()) user_error("{}: rank {}: expected actions, got none", schedule.name, rank);
    for (size_t i = 0; i < actions.size(); ++i) {
      const auto& action = actions[i];
      check_place(schedule, rank, action);
      if (action.with_next) check_pair(schedule, rank, i);
      ++counts[static_cast<size_t>(action.stage) * num_micro_batches +
               static_cast<size_t>(action.micro_batch)][static_cast<size_t>(action.kind)];
    }
  }
  for (int stage = 0; stage < schedule.num_stages; ++stage) {
    for (int micro_batch = 0; micro_batch < schedule.num_micro_batches; ++micro_batch) {
      const auto at =
          static_cast<size_t>(stage) * num_micro_batches + static_cast<size_t>(micro_batch);
      check_counts(schedule, {Kind::forward, stage, micro_batch}, counts[at]);
    }
  }
}

std::string describe(const Schedule& schedule, const Edge& edge) {
  const auto name = name_of(edge.needs);
  const int rank = schedule.rank_of_stage[static_cast<size_t>(edge.needs.stage)];
  switch (edge.reason) {
    case Reason::rank_order:
      return fmt::format("waits for {}, before it on rank {}", name, rank);
    case Reason::output:
      return fmt::format("waits for the output of {} on rank {}", name, rank);
    case Reason::gradient:
      return fmt::format("waits for the gradient from {} on rank {}", name, rank);
    case Reason::activation:
      return fmt::format("waits for its forward {}", name);
    case Reason::input_part:
      return fmt::format("waits for its input part {}", name);
  }
  return name;
}

/// One sentence a link: neighbours on a rank that follow each other become one.
std::string describe(const Schedule& schedule, std::vector<Edge> cycle) {
  const auto turn = std::ranges::find_if(
      cycle, [](const Edge& edge) { return edge.reason != Reason::rank_order; });
  std::rotate(cycle.begin(), turn, cycle.end());
  std::vector<Edge> links;
  for (const auto& edge : cycle) {
    if (edge.reason == Reason::rank_order && !links.empty() &&
        links.back().reason == Reason::rank_order) {
      links.back().node = edge.node;
      links.back().needs = edge.needs;
    } else {
      links.push_back(edge);
    }
  }
  // In a pair the way may enter by one action and leave by the other: each link has its own start.
  std::string text;
  for (const auto& link : links) {
    text += fmt::format("{}{} {}", text.empty() ? "" : "; ", name_of(link.from),
                        describe(schedule, link));
  }
  return text;
}

void check_no_cycle(const Schedule& schedule) {
  const auto graph = make_graph(schedule);
  const auto cycle = shortest_cycle(graph);
  if (cycle.empty()) return;
  user_error("{}: deadlock: {}; put them in another order", schedule.name,
             describe(schedule, cycle));
}

void check_memory(const Schedule& schedule) {
  if (schedule.peak_limit.empty()) return;
  const auto peaks = peak_activations(schedule);
  for (size_t rank = 0; rank < peaks.size(); ++rank) {
    // Shares of an activation add up with rounding.
    if (peaks[rank] <= schedule.peak_limit[rank] + 1e-9) continue;
    user_error("{}: rank {} holds {:.6g} activations at once; expected at most {:.6g}",
               schedule.name, rank, peaks[rank], schedule.peak_limit[rank]);
  }
}

}  // namespace

std::vector<double> peak_activations(const Schedule& schedule) {
  std::vector<double> peaks;
  for (const auto& actions : schedule.ranks) {
    double held = 0, peak = 0, freed = 0;
    for (const auto& action : actions) {
      if (action.kind == Kind::forward) held += 1;
      if (action.kind == Kind::backward) freed += 1;
      if (action.kind == Kind::backward_input) freed += 1 - schedule.kept_for_weight;
      if (action.kind == Kind::backward_weight) freed += schedule.kept_for_weight;
      peak = std::max(peak, held);
      if (action.with_next) continue;  // what its pair frees is held until both end
      held -= freed;
      freed = 0;
    }
    peaks.push_back(peak);
  }
  return peaks;
}

void check(const Schedule& schedule) {
  check_complete(schedule);
  check_no_cycle(schedule);
  check_memory(schedule);
}

}  // namespace tessera::schedule
