#include "tessera/schedule/simulate.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tessera/base/error.h"
#include "tessera/schedule/check.h"
#include "tessera/schedule/graph.h"

namespace tessera::schedule {
namespace {

double of_stage(const std::vector<double>& times, int stage) {
  return times.size() == 1 ? times[0] : times[static_cast<size_t>(stage)];
}

double duration(const Action& action, const Times& times) {
  const double input = of_stage(times.input, action.stage);
  const double weight = of_stage(times.weight, action.stage);
  switch (action.kind) {
    case Kind::forward:
      return of_stage(times.forward, action.stage);
    case Kind::backward:
      return input + weight;
    case Kind::backward_input:
      return input;
    case Kind::backward_weight:
      return weight;
  }
  return 0;
}

double duration(const Action* actions, int num_actions, const Times& times) {
  if (num_actions > 1 && times.pair > 0) return times.pair;
  double total = 0;
  for (int i = 0; i < num_actions; ++i) total += duration(actions[i], times);
  return total;
}

bool is_time(double value) { return std::isfinite(value) && value >= 0; }

}  // namespace

void check_times(const Times& times, int num_stages, const std::string& name) {
  const std::vector<double> others = {times.transfer, times.pair};
  for (const auto* list : {&times.forward, &times.input, &times.weight, &others}) {
    if (!std::ranges::all_of(*list, is_time))
      user_error("{}: expected times of 0 or more, got {}", name, fmt::join(*list, ", "));
    if (list == &others || list->size() == 1 || static_cast<int>(list->size()) == num_stages)
      continue;
    user_error("{}: expected one time, or one for each of {} stages, got {}", name, num_stages,
               list->size());
  }
}

double Simulation::bubble() const {
  if (makespan <= 0) return 0;
  const double work = std::accumulate(busy.begin(), busy.end(), 0.0);
  return 1 - work / (makespan * static_cast<double>(busy.size()));
}

double Simulation::bubble(int rank) const {
  return makespan <= 0 ? 0 : 1 - busy[static_cast<size_t>(rank)] / makespan;
}

double Simulation::bubble_without_barrier() const {
  if (longest_span <= 0) return 0;
  const double work = std::accumulate(busy.begin(), busy.end(), 0.0);
  return 1 - work / (longest_span * static_cast<double>(busy.size()));
}

Simulation simulate(const Schedule& schedule, const Times& times) {
  check(schedule);
  check_times(times, schedule.num_stages, schedule.name);
  const auto graph = make_graph(schedule);
  std::vector<Span> spans(graph.nodes.size());
  for (const int index : topological_order(graph)) {
    const auto& node = graph.nodes[static_cast<size_t>(index)];
    auto& span = spans[static_cast<size_t>(index)];
    for (const auto& edge : graph.before[static_cast<size_t>(index)]) {
      const bool sent = graph.nodes[static_cast<size_t>(edge.node)].rank != node.rank;
      span.start = std::max(
          span.start, spans[static_cast<size_t>(edge.node)].end + (sent ? times.transfer : 0.0));
    }
    const auto& actions = schedule.ranks[static_cast<size_t>(node.rank)];
    span.end = span.start + duration(actions.data() + node.first, node.num_actions, times);
  }

  Simulation result;
  result.spans.resize(schedule.ranks.size());
  result.busy.resize(schedule.ranks.size());
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    const auto rank = static_cast<size_t>(graph.nodes[i].rank);
    result.spans[rank].insert(result.spans[rank].end(),
                              static_cast<size_t>(graph.nodes[i].num_actions), spans[i]);
    result.busy[rank] += spans[i].end - spans[i].start;
  }
  for (const auto& rank : result.spans) {
    result.makespan = std::max(result.makespan, rank.back().end);
    result.longest_span = std::max(result.longest_span, rank.back().end - rank.front().start);
  }
  return result;
}

}  // namespace tessera::schedule
