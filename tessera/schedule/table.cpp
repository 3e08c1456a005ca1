#include "tessera/schedule/table.h"

#include <fmt/format.h>

#include <algorithm>

#include "tessera/schedule/graph.h"

namespace tessera::schedule {

std::string name_of(const Action& action) {
  return fmt::format("{}{}{}", action.stage, "FBIW"[static_cast<int>(action.kind)],
                     action.micro_batch);
}

std::string describe(const Action& action) {
  constexpr const char* kNames[] = {"forward", "backward", "input part", "weight part"};
  return fmt::format("stage {}, {} of micro-batch {} ({})", action.stage,
                     kNames[static_cast<int>(action.kind)], action.micro_batch, name_of(action));
}

std::vector<int> place_stages(int num_ranks, int stages_per_rank, Placement placement) {
  std::vector<int> rank_of_stage;
  for (int turn = 0; turn < stages_per_rank; ++turn) {
    for (int i = 0; i < num_ranks; ++i) {
      const bool back = placement == Placement::v && turn % 2 == 1;
      rank_of_stage.push_back(back ? num_ranks - 1 - i : i);
    }
  }
  return rank_of_stage;
}

std::vector<std::vector<int>> slots_of(const Schedule& schedule) {
  const auto graph = make_graph(schedule);
  std::vector<int> slot_of_node(graph.nodes.size());
  for (const int node : topological_order(graph)) {
    for (const auto& edge : graph.before[static_cast<size_t>(node)]) {
      auto& slot = slot_of_node[static_cast<size_t>(node)];
      slot = std::max(slot, slot_of_node[static_cast<size_t>(edge.node)] + 1);
    }
  }
  std::vector<std::vector<int>> slots(schedule.ranks.size());
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    const auto& node = graph.nodes[i];
    for (int action = 0; action < node.num_actions; ++action)
      slots[static_cast<size_t>(node.rank)].push_back(slot_of_node[i]);
  }
  return slots;
}

}  // namespace tessera::schedule
