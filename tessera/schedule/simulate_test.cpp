#include "tessera/schedule/simulate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tessera/base/testing.h"
#include "tessera/schedule/generate.h"

namespace tessera::schedule {
namespace {

using ::testing::DoubleNear;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr double kExact = 1e-12;

TEST(Simulate, BubblesOfGPipeAnd1F1BAreTheFormula) {
  for (const auto family : {Family::gpipe, Family::one_f_one_b}) {
    for (const int p : {1, 2, 3, 4, 8, 16}) {
      for (const int m : {1, 2, 3, 5, 8, 16, 37}) {
        const auto run = simulate(make_schedule({family, p, m}),
                                  {.forward = {0.7}, .input = {1.1}, .weight = {0.3}});
        EXPECT_NEAR(run.bubble(), (p - 1.0) / (m + p - 1), kExact) << p << ' ' << m;
        for (int rank = 0; rank < p; ++rank)
          EXPECT_NEAR(run.bubble(rank), (p - 1.0) / (m + p - 1), kExact);
      }
    }
  }
}

// Idle time of a rank as published, where it is: with and without a barrier, for several times.
TEST(Simulate, IdleTimesAreThePublishedOnes) {
  const Times all_times[] = {
      {{1}, {1}, {1}}, {{10}, {10}, {5}}, {{10}, {14}, {7}}, {{10}, {7}, {7}}};
  int seen = 0;
  for (const auto& family : families()) {
    for (const auto& times : all_times) {
      for (const int p : {1, 2, 4, 8}) {
        for (const int m : {3, 8, 16, 19}) {
          const ScheduleOptions options{
              .family = family.family, .num_ranks = p, .num_micro_batches = m, .times = times};
          if (family.family == Family::dual_pipe_v && m < 2 * p) continue;
          const auto prediction = predict_bubble(options);
          if (!prediction) continue;
          const auto run = simulate(make_schedule(options), times);
          EXPECT_NEAR(prediction->without_barrier ? run.bubble_without_barrier() : run.bubble(),
                      prediction->bubble, kExact)
              << family.name << " p " << p << " m " << m;
          ++seen;
        }
      }
    }
  }
  EXPECT_EQ(seen, 441);
}

TEST(PredictBubble, AreTheFormulasOfThePapers) {
  const auto bubble = [](Family family, int stages_per_rank = 0) {
    return predict_bubble({.family = family,
                           .num_ranks = 4,
                           .num_micro_batches = 8,
                           .stages_per_rank = stages_per_rank,
                           .times = {{1}, {1}, {1}}})
        ->bubble;
  };
  EXPECT_DOUBLE_EQ(bubble(Family::gpipe), 3.0 / 11);
  EXPECT_DOUBLE_EQ(bubble(Family::interleaved, 2), 3.0 / 19);
  EXPECT_DOUBLE_EQ(bubble(Family::zb_h1), 3.0 / 27);  // a third of 1F1B's idle time
  EXPECT_DOUBLE_EQ(bubble(Family::zb_h2), 0);
  EXPECT_DOUBLE_EQ(bubble(Family::zbv), 0);
  EXPECT_DOUBLE_EQ(bubble(Family::dual_pipe_v), 6.0 / (8 * 2 * 3 + 6));
  EXPECT_FALSE(predict_bubble({Family::zb_2p, 4, 8}));
  EXPECT_FALSE(predict_bubble({Family::zb_h2, 4, 6}));  // 2 p - 1 are needed
  EXPECT_FALSE(predict_bubble({.family = Family::gpipe,
                               .num_ranks = 2,
                               .num_micro_batches = 8,
                               .times = {.forward = {1, 2}}}));
}

TEST(Simulate, FewMicroBatchesOnZeroBubble) {
  // (m + p - 1)(F + I) + W for m <= p
  for (const int m : {1, 3, 5, 8}) {
    const auto run = simulate(make_schedule({Family::zb_h1, 8, m}), {{4}, {3}, {2}});
    EXPECT_NEAR(run.makespan, (m + 7) * 7 + 2, kExact) << m;
  }
}

TEST(Simulate, UnevenStagesAndTransfersByHand) {
  // rank 0: F0 0-2, F1 2-4, B0 12-15, B1 20-23; rank 1: F0 3-6, B0 6-11, F1 11-14, B1 14-19
  const auto run = simulate(make_schedule({Family::one_f_one_b, 2, 2}),
                            {.forward = {2, 3}, .input = {1, 3}, .weight = {2, 2}, .transfer = 1});
  const auto starts = [&](size_t rank) {
    std::vector<double> result;
    for (const auto& span : run.spans[rank]) result.push_back(span.start);
    return result;
  };
  EXPECT_THAT(starts(0), ElementsAre(0, 2, 12, 20));
  EXPECT_THAT(starts(1), ElementsAre(3, 6, 11, 14));
  EXPECT_EQ(run.makespan, 23);
  EXPECT_EQ(run.longest_span, 23);
  EXPECT_THAT(run.busy, ElementsAre(10, 16));
  EXPECT_DOUBLE_EQ(run.bubble(0), 13.0 / 23);
  EXPECT_DOUBLE_EQ(run.bubble(), 1 - 26.0 / 46);
}

TEST(Simulate, NoTransferWithinARank) {
  // The turn of the V is on rank p - 1: 2 (p - 1) transfers each way, not 2 p - 1. Its own two
  // backwards have the first one's weight part between them.
  const auto run = simulate(make_schedule({Family::zbv, 4, 1}), {{1}, {1}, {1}, 10});
  EXPECT_DOUBLE_EQ(run.makespan, 8 + 8 + 2 + 12 * 10);
}

TEST(Simulate, APairTakesAsLongAsItIsSaidTo) {
  const auto schedule = make_schedule({Family::dual_pipe_v, 4, 16});
  const auto plain = simulate(schedule), after_each_other = simulate(schedule, {.pair = 3});
  EXPECT_DOUBLE_EQ(plain.makespan, after_each_other.makespan);
  EXPECT_LT(simulate(schedule, {.pair = 2.2}).makespan, plain.makespan);
}

TEST(Simulate, RefusesTimesThatDoNotMatch) {
  const auto schedule = make_schedule({Family::gpipe, 4, 4});
  EXPECT_EQ(tessera::testing::message_of([&] {
              simulate(schedule, {.forward = {1, 2, 3}});
            }),
            "GPipe: expected one time, or one for each of 4 stages, got 3");
  EXPECT_EQ(tessera::testing::message_of([&] { simulate(schedule, {.transfer = -1}); }),
            "GPipe: expected times of 0 or more, got -1, 0");
}

}  // namespace
}  // namespace tessera::schedule
