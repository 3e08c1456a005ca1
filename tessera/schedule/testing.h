// A second opinion on tables, for tests.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "tessera/schedule/table.h"

namespace tessera::schedule::testing {

/// Ranks that do what they can until nothing is left, without any graph: how many actions they do.
inline int actions_done(const Schedule& schedule) {
  std::set<std::string> done;
  std::vector<size_t> next(schedule.ranks.size());
  const auto can = [&](const Action& action) {
    const auto has = [&](Kind kind, int stage) {
      return done.contains(name_of({kind, stage, action.micro_batch}));
    };
    if (action.kind == Kind::forward)
      return action.stage == 0 || has(Kind::forward, action.stage - 1);
    if (action.kind == Kind::backward_weight) return has(Kind::backward_input, action.stage);
    return has(Kind::forward, action.stage) &&
           (action.stage + 1 == schedule.num_stages || has(Kind::backward, action.stage + 1) ||
            has(Kind::backward_input, action.stage + 1));
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t rank = 0; rank < next.size(); ++rank) {
      const auto& actions = schedule.ranks[rank];
      while (next[rank] < actions.size() && can(actions[next[rank]])) {
        const bool pair = actions[next[rank]].with_next;
        if (pair && !can(actions[next[rank] + 1])) break;
        done.insert(name_of(actions[next[rank]++]));
        if (pair) done.insert(name_of(actions[next[rank]++]));
        moved = true;
      }
    }
  }
  return static_cast<int>(done.size());
}

}  // namespace tessera::schedule::testing
