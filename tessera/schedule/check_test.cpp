#include "tessera/schedule/check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "tessera/base/testing.h"
#include "tessera/schedule/generate.h"
#include "tessera/schedule/graph.h"
#include "tessera/schedule/testing.h"

namespace tessera::schedule {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

/// rank 0: F0 F1 B0 F2 B1 B2, rank 1: F0 B0 F1 B1 F2 B2
Schedule two_ranks() { return make_schedule({Family::one_f_one_b, 2, 3}); }

std::string verdict(const Schedule& schedule) {
  return tessera::testing::message_of([&] { check(schedule); });
}

TEST(Check, ASwappedPairIsRefusedWithItsCycle) {
  auto schedule = two_ranks();
  std::swap(schedule.ranks[1][1], schedule.ranks[1][2]);
  EXPECT_EQ(verdict(schedule), "1F1B: rank 1 holds 2 activations at once; expected at most 1");
  std::swap(schedule.ranks[0][1], schedule.ranks[0][2]);
  EXPECT_EQ(verdict(schedule),
            "1F1B: deadlock: 0B0 waits for the gradient from 1B0 on rank 1; 1B0 waits for 1F1, "
            "before it on rank 1; 1F1 waits for the output of 0F1 on rank 0; 0F1 waits for 0B0, "
            "before it on rank 0; put them in another order");
}

TEST(Check, ABackwardBeforeItsForwardIsACycleOfTwo) {
  auto schedule = two_ranks();
  std::swap(schedule.ranks[1][0], schedule.ranks[1][1]);
  EXPECT_EQ(
      verdict(schedule),
      "1F1B: deadlock: 1B0 waits for its forward 1F0; 1F0 waits for 1B0, before it on rank 1; "
      "put them in another order");
}

TEST(Check, AWeightPartBeforeItsInputPartIsACycle) {
  auto schedule = make_schedule({Family::zb_h1, 1, 1});  // F0 I0 W0
  std::swap(schedule.ranks[0][1], schedule.ranks[0][2]);
  EXPECT_EQ(verdict(schedule),
            "ZB-H1: deadlock: 0W0 waits for its input part 0I0; 0I0 waits for 0W0, before it on "
            "rank 0; put them in another order");
}

TEST(Check, WhatOneOfAPairGivesTheOtherNeedsIsACycle) {
  auto schedule = make_schedule({Family::one_f_one_b, 1, 1});
  schedule.ranks[0][0].with_next = true;
  EXPECT_EQ(verdict(schedule),
            "1F1B: deadlock: 0B0 waits for its forward 0F0; put them in another order");
}

TEST(Check, NamesTheActionThatIsWrong) {
  using Change = void (*)(Schedule&);
  const std::pair<Change, const char*> changes[] = {
      {[](Schedule& s) { s.ranks[0].pop_back(); }, "0B2 is missing (or 0I2 and 0W2)"},
      {[](Schedule& s) { s.ranks[1].erase(s.ranks[1].begin()); }, "1F0 is missing"},
      {[](Schedule& s) { s.ranks[0].push_back(s.ranks[0][0]); }, "0F0 is there 2 times"},
      {[](Schedule& s) { s.ranks[0][5].kind = Kind::backward_input; },
       "0W2 is missing: 0I2 is the input part alone"},
      {[](Schedule& s) {
         s.ranks[0].push_back({Kind::backward_weight, 0, 2});
       },
       "0B2 is there beside 0W2"},
      {[](Schedule& s) { s.ranks[0][0].stage = 1; }, "rank 0: 1F0: stage 1 is on rank 1"},
      {[](Schedule& s) { s.ranks[0][0].stage = 2; }, "rank 0: 2F0: expected a stage in [0, 1]"},
      {[](Schedule& s) { s.ranks[0][0].micro_batch = 3; },
       "rank 0: 0F3: expected a micro-batch in [0, 2]; there are 3"},
      {[](Schedule& s) { s.ranks[1].clear(); }, "rank 1: expected actions, got none"},
      {[](Schedule& s) { s.ranks[0][0].with_next = true; },
       "rank 0: 0F0: what is computed at the same time is one forward and one backward"},
      {[](Schedule& s) { s.ranks[1].back().with_next = true; }, "rank 1: 1B2: what is computed"},
      {[](Schedule& s) {
         s.peak_limit = {1, 1};
       },
       "rank 0 holds 2 activations at once; expected at most 1"},
  };
  for (const auto& [change, message] : changes) {
    auto schedule = two_ranks();
    change(schedule);
    EXPECT_THAT(verdict(schedule), StartsWith(std::string("1F1B: ") + message));
  }
}

TEST(Check, FindsADeadlockWhereverThereIsOne) {
  std::mt19937 random(3);
  int deadlocks = 0, good = 0;
  for (int trial = 0; trial < 1500; ++trial) {
    const auto& family = families()[static_cast<size_t>(trial) % families().size()];
    auto schedule =
        make_schedule({.family = family.family, .num_ranks = 3, .num_micro_batches = 6});
    schedule.peak_limit.clear();
    auto& actions = schedule.ranks[random() % 3];
    const size_t one = random() % actions.size();
    const size_t other = std::min(one + 1 + random() % 3, actions.size() - 1);
    std::swap(actions[one].stage, actions[other].stage);
    std::swap(actions[one].kind, actions[other].kind);
    std::swap(actions[one].micro_batch, actions[other].micro_batch);
    const auto text = verdict(schedule);
    if (text.find("what is computed at the same time") != std::string::npos) continue;
    size_t num_actions = 0;
    for (const auto& rank : schedule.ranks) num_actions += rank.size();
    const bool ends = testing::actions_done(schedule) == static_cast<int>(num_actions);
    EXPECT_EQ(text == "no error", ends) << text;
    ++(ends ? good : deadlocks);
    if (ends) continue;
    EXPECT_THAT(text, HasSubstr(": deadlock: "));
  }
  EXPECT_GT(deadlocks, 200);
  EXPECT_GT(good, 200);
}

TEST(ShortestCycle, ClosesAndHasNoShorterOne) {
  auto schedule = two_ranks();
  std::swap(schedule.ranks[0][1], schedule.ranks[0][2]);
  std::swap(schedule.ranks[1][1], schedule.ranks[1][2]);  // the cycle of four links above
  std::swap(schedule.ranks[1][4], schedule.ranks[1][5]);  // and one of two
  const auto graph = make_graph(schedule);
  const auto cycle = shortest_cycle(graph);
  ASSERT_EQ(cycle.size(), 2u);
  for (size_t i = 0; i < cycle.size(); ++i) {
    const auto& edges = graph.before[static_cast<size_t>(cycle[i].node)];
    const int next = cycle[(i + 1) % cycle.size()].node;
    EXPECT_TRUE(std::ranges::any_of(edges, [&](const Edge& edge) { return edge.node == next; }));
  }
  EXPECT_TRUE(shortest_cycle(make_graph(two_ranks())).empty());
}

TEST(PeakActivations, CountSharesAndPairs) {
  Schedule schedule{.name = "table",
                    .num_stages = 1,
                    .num_micro_batches = 2,
                    .rank_of_stage = {0},
                    .ranks = {{{Kind::forward, 0, 0},
                               {Kind::backward_input, 0, 0},
                               {Kind::forward, 0, 1},
                               {Kind::backward_weight, 0, 0},
                               {Kind::backward, 0, 1}}}};
  EXPECT_EQ(peak_activations(schedule), std::vector<double>{2});
  schedule.kept_for_weight = 0.25;
  EXPECT_EQ(peak_activations(schedule), std::vector<double>{1.25});
  // In a pair the forward's is held beside the backward's.
  Schedule pair{.ranks = {{{Kind::forward, 0, 0},
                           {Kind::backward, 0, 0, true},
                           {Kind::forward, 0, 1},
                           {Kind::backward, 0, 1}}}};
  EXPECT_EQ(peak_activations(pair), std::vector<double>{2});
}

}  // namespace
}  // namespace tessera::schedule
