// What must happen before what in a schedule.
#pragma once

#include <vector>

#include "tessera/schedule/table.h"

namespace tessera::schedule {

/// A slot of a rank: one action, or two that are computed at the same time, which start together
/// and so wait for what both need.
struct Node {
  int rank = 0;
  int first = 0;  ///< of its actions, in the rank's list
  int num_actions = 1;
};

enum class Reason { rank_order, output, gradient, activation, input_part };

/// The node waits for an action of `node`, which it needs for its own action `from`.
struct Edge {
  int node = 0;
  Reason reason = Reason::rank_order;
  Action needs, from;
};

struct Graph {
  std::vector<Node> nodes;  ///< rank by rank, each in its order
  std::vector<std::vector<Edge>> before;
};

/// The graph of a table in which every action that another needs is there. O(actions).
Graph make_graph(const Schedule& schedule);

/// Every node after those it waits for. What stands on a cycle, or behind one, is left out.
std::vector<int> topological_order(const Graph& graph);

/// A cycle of as few edges as there are, each node followed by one that it waits for; empty if
/// there is none. O(edges), and where there is a cycle, O(nodes * edges) of what waits for it.
std::vector<Edge> shortest_cycle(const Graph& graph);

}  // namespace tessera::schedule
