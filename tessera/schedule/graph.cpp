#include "tessera/schedule/graph.h"

#include <algorithm>
#include <deque>

namespace tessera::schedule {
namespace {

/// Where each (stage, micro-batch) is computed: nodes of its three kinds of work.
class Places {
 public:
  explicit Places(const Schedule& schedule)
      : num_micro_batches_(static_cast<size_t>(schedule.num_micro_batches)),
        places_(static_cast<size_t>(schedule.num_stages) * num_micro_batches_) {}

  struct Place {
    int node = -1;
    Action action;
  };
  struct Work {
    Place forward, input, weight;  ///< a whole backward is both of its parts
  };

  Work& at(int stage, int micro_batch) {
    return places_[static_cast<size_t>(stage) * num_micro_batches_ +
                   static_cast<size_t>(micro_batch)];
  }

 private:
  size_t num_micro_batches_;
  std::vector<Work> places_;
};

void note(Places& places, int node, const Action& action) {
  auto& work = places.at(action.stage, action.micro_batch);
  const Places::Place place{node, action};
  if (action.kind == Kind::forward) work.forward = place;
  if (action.kind == Kind::backward || action.kind == Kind::backward_input) work.input = place;
  if (action.kind == Kind::backward || action.kind == Kind::backward_weight) work.weight = place;
}

void add_needs(Places& places, const Schedule& schedule, const Action& action,
               std::vector<Edge>& edges) {
  const auto add = [&](const Places::Place& place, Reason reason) {
    edges.push_back({place.node, reason, place.action, action});
  };
  const auto& own = places.at(action.stage, action.micro_batch);
  switch (action.kind) {
    case Kind::forward:
      if (action.stage > 0)
        add(places.at(action.stage - 1, action.micro_batch).forward, Reason::output);
      break;
    case Kind::backward:
    case Kind::backward_input:
      add(own.forward, Reason::activation);
      if (action.stage + 1 < schedule.num_stages)
        add(places.at(action.stage + 1, action.micro_batch).input, Reason::gradient);
      break;
    case Kind::backward_weight:
      add(own.input, Reason::input_part);
      break;
  }
}

/// Nodes that `topological_order` leaves out.
std::vector<bool> is_stuck(const Graph& graph) {
  std::vector<bool> stuck(graph.nodes.size(), true);
  for (const int node : topological_order(graph)) stuck[static_cast<size_t>(node)] = false;
  return stuck;
}

/// The shortest way from `start` back to it through what is stuck, if shorter than `limit` edges.
std::vector<Edge> cycle_through(const Graph& graph, const std::vector<bool>& stuck, int start,
                                size_t limit) {
  struct Step {
    int from = -1;  ///< -1: not reached
    size_t edge = 0, length = 0;
  };
  std::vector<Step> steps(graph.nodes.size());
  std::deque<int> queue{start};
  while (!queue.empty()) {
    const int node = queue.front();
    queue.pop_front();
    const auto length = node == start ? 0 : steps[static_cast<size_t>(node)].length;
    if (length + 1 >= limit) return {};
    const auto& edges = graph.before[static_cast<size_t>(node)];
    for (size_t i = 0; i < edges.size(); ++i) {
      auto& step = steps[static_cast<size_t>(edges[i].node)];
      if (!stuck[static_cast<size_t>(edges[i].node)] || step.from >= 0) continue;
      step = {node, i, length + 1};
      if (edges[i].node != start) {
        queue.push_back(edges[i].node);
        continue;
      }
      std::vector<Edge> cycle;
      for (int at = start; cycle.empty() || at != start; at = steps[static_cast<size_t>(at)].from) {
        const auto& last = steps[static_cast<size_t>(at)];
        cycle.push_back(graph.before[static_cast<size_t>(last.from)][last.edge]);
      }
      std::ranges::reverse(cycle);
      return cycle;
    }
  }
  return {};
}

}  // namespace

Graph make_graph(const Schedule& schedule) {
  Graph graph;
  Places places(schedule);
  for (int rank = 0; rank < schedule.num_ranks(); ++rank) {
    const auto& actions = schedule.ranks[static_cast<size_t>(rank)];
    for (size_t i = 0; i < actions.size();) {
      const int node = static_cast<int>(graph.nodes.size());
      size_t end = i;
      while (actions[end].with_next) ++end;
      graph.nodes.push_back({rank, static_cast<int>(i), static_cast<int>(end + 1 - i)});
      for (; i <= end; ++i) note(places, node, actions[i]);
    }
  }
  graph.before.resize(graph.nodes.size());
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    const auto& node = graph.nodes[i];
    const auto* actions = schedule.ranks[static_cast<size_t>(node.rank)].data() + node.first;
    if (node.first > 0) {
      graph.before[i].push_back(
          {static_cast<int>(i) - 1, Reason::rank_order, actions[-1], actions[0]});
    }
    for (int action = 0; action < node.num_actions; ++action)
      add_needs(places, schedule, actions[action], graph.before[i]);
  }
  return graph;
}

std::vector<int> topological_order(const Graph& graph) {
  std::vector<std::vector<int>> after(graph.nodes.size());
  std::vector<size_t> waits(graph.nodes.size());
  std::vector<int> order;
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    waits[i] = graph.before[i].size();
    if (waits[i] == 0) order.push_back(static_cast<int>(i));
    for (const auto& edge : graph.before[i])
      after[static_cast<size_t>(edge.node)].push_back(static_cast<int>(i));
  }
  for (size_t i = 0; i < order.size(); ++i) {
    for (const int next : after[static_cast<size_t>(order[i])])
      if (--waits[static_cast<size_t>(next)] == 0) order.push_back(next);
  }
  return order;
}

std::vector<Edge> shortest_cycle(const Graph& graph) {
  const auto stuck = is_stuck(graph);
  std::vector<Edge> shortest;
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    if (!stuck[i]) continue;
    const auto limit = shortest.empty() ? graph.nodes.size() + 2 : shortest.size();
    auto cycle = cycle_through(graph, stuck, static_cast<int>(i), limit);
    if (!cycle.empty()) shortest = std::move(cycle);
  }
  return shortest;
}

}  // namespace tessera::schedule
