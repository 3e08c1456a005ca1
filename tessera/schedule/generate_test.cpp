#include "tessera/schedule/generate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tessera/base/testing.h"
#include "tessera/schedule/check.h"
#include "tessera/schedule/csv.h"
#include "tessera/schedule/testing.h"

namespace tessera::schedule {
namespace {

using tessera::testing::message_of;
using ::testing::HasSubstr;

/// `run` with every family, size and number of stages that is to work.
template <typename Run>
void for_each_schedule(const Run& run) {
  for (const auto& family : families()) {
    for (const int p : {1, 2, 3, 4, 8}) {
      for (const int m : {1, 2, 3, 5, 8, 16}) {
        if (family.family == Family::dual_pipe_v && m < 2 * p) continue;
        const int most = family.most_stages == 0 ? 3 : family.most_stages;
        for (int v = family.least_stages; v <= most; ++v) {
          SCOPED_TRACE(::testing::Message()
                       << family.name << " p " << p << " m " << m << " v " << v);
          run(ScheduleOptions{family.family, p, m, v});
        }
      }
    }
  }
}

TEST(MakeSchedule, IsCompleteAndWithoutDeadlockForEverySize) {
  int seen = 0;
  for_each_schedule([&](const ScheduleOptions& options) {
    const auto schedule = make_schedule(options);
    ASSERT_EQ(schedule.num_ranks(), options.num_ranks);
    ASSERT_EQ(schedule.num_stages, options.num_ranks * options.stages_per_rank);
    int actions = 0, work = 0;
    for (const auto& rank : schedule.ranks) {
      for (const auto& action : rank) work += action.kind == Kind::backward ? 2 : 1;
      actions += static_cast<int>(rank.size());
    }
    EXPECT_EQ(work, 3 * schedule.num_stages * options.num_micro_batches);
    EXPECT_EQ(testing::actions_done(schedule), actions);
    ++seen;
  });
  EXPECT_EQ(seen, 493);
}

TEST(MakeSchedule, HoldsNoMoreThanItPromisesAndPromisesNoMoreThanIsHeld) {
  for_each_schedule([](const ScheduleOptions& options) {
    const auto schedule = make_schedule(options);
    const auto peaks = peak_activations(schedule);
    ASSERT_EQ(schedule.peak_limit.size(), peaks.size());
    for (size_t rank = 0; rank < peaks.size(); ++rank)
      EXPECT_LE(peaks[rank], schedule.peak_limit[rank]) << rank;
    const bool is_given = options.family == Family::zb_1p || options.family == Family::zb_2p;
    if (is_given) return;
    EXPECT_EQ(std::ranges::max(peaks), std::ranges::max(schedule.peak_limit));
  });
}

TEST(MakeSchedule, PeaksAreThePublishedOnes) {
  const auto peak = [](Family family, int stages_per_rank = 0) {
    return std::ranges::max(peak_activations(make_schedule({family, 8, 32, stages_per_rank})));
  };
  EXPECT_EQ(peak(Family::gpipe), 32);
  EXPECT_EQ(peak(Family::one_f_one_b), 8);
  EXPECT_EQ(peak(Family::interleaved, 3), 3 * 8 + 8 - 1);  // of stages a third as large
  EXPECT_EQ(peak(Family::looped_bfs, 2), 64);
  EXPECT_EQ(peak(Family::zb_h1), 8);
  EXPECT_EQ(peak(Family::zb_h2), 15);
  EXPECT_EQ(peak(Family::interleaved_zero_bubble, 2), 16);
  EXPECT_EQ(peak(Family::zbv), 16);          // of half stages: 1F1B's
  EXPECT_EQ(peak(Family::dual_pipe_v), 17);  // PP + 1 with PP = 2 p stages
}

TEST(MakeSchedule, AutomaticOnesObeyTheLimit) {
  const Times times{.forward = {18.5}, .input = {18.1}, .weight = {9.3}, .transfer = 0.6};
  double before = 1e9;
  for (const double limit : {1.0, 2.0, 4.0, 6.5, 8.0, 12.0, 16.0}) {
    const auto schedule = make_schedule({.family = Family::zb_1p,
                                         .num_ranks = 8,
                                         .num_micro_batches = 24,
                                         .memory_limit = limit,
                                         .kept_for_weight = 0.4,
                                         .times = times});
    EXPECT_LE(std::ranges::max(peak_activations(schedule)), limit + 1e-9);
    const double span = simulate(schedule, times).longest_span;
    EXPECT_LE(span, before) << limit;  // more memory, less time
    before = span;
  }
}

TEST(MakeSchedule, AutomaticOnesTakeUnevenStages) {
  const Times times{.forward = {10, 14, 10, 6}, .input = {10, 15, 9, 7}, .weight = {5, 6, 5, 12}};
  const auto span = [&](Family family) {
    const auto schedule =
        make_schedule({.family = family, .num_ranks = 4, .num_micro_batches = 13, .times = times});
    return simulate(schedule, times).longest_span;
  };
  EXPECT_LT(span(Family::zb_2p), span(Family::zb_1p));
  EXPECT_LE(span(Family::zb_1p), span(Family::zb_h1));
  EXPECT_LT(span(Family::zb_1p), span(Family::one_f_one_b));
  EXPECT_GE(span(Family::zb_2p), 13 * 35.0);  // the work of rank 1
}

TEST(MakeSchedule, IsTheSameEveryTime) {
  for_each_schedule([](const ScheduleOptions& options) {
    EXPECT_EQ(make_schedule(options).ranks, make_schedule(options).ranks);
  });
}

struct TorchTable {
  const char* file;
  Family family;
};

/// Tables that PyTorch 2.11 made, without what its runtime adds.
class TorchTables : public ::testing::TestWithParam<TorchTable> {};

TEST_P(TorchTables, AreOurs) {
  const auto theirs = read_csv(std::string("tests/fixtures/schedules/") + GetParam().file + ".csv");
  const int ranks = theirs.num_ranks();
  const auto ours = make_schedule({.family = GetParam().family,
                                   .num_ranks = ranks,
                                   .num_micro_batches = theirs.num_micro_batches,
                                   .stages_per_rank = theirs.num_stages / ranks});
  EXPECT_NO_THROW(check(theirs));
  EXPECT_EQ(ours.rank_of_stage, theirs.rank_of_stage);
  for (size_t rank = 0; rank < ours.ranks.size(); ++rank)
    EXPECT_EQ(ours.ranks[rank], theirs.ranks[rank]) << "rank " << rank;
}

INSTANTIATE_TEST_SUITE_P(
    Families, TorchTables,
    ::testing::Values(TorchTable{"GPipe_p4_m6", Family::gpipe},
                      TorchTable{"LoopedBFS_p3_m5_v2", Family::looped_bfs},
                      TorchTable{"Interleaved1F1B_p4_m8_v2", Family::interleaved},
                      TorchTable{"Interleaved1F1B_p4_m10_v2", Family::interleaved},
                      TorchTable{"Interleaved1F1B_p4_m3_v2", Family::interleaved},
                      TorchTable{"lowered_Interleaved1F1B_p2_m4_v2", Family::interleaved},
                      TorchTable{"InterleavedZeroBubble_p4_m10_v2",
                                 Family::interleaved_zero_bubble},
                      TorchTable{"ZBVZeroBubble_p4_m3_v2", Family::zbv},
                      TorchTable{"ZBVZeroBubble_p4_m8_v2", Family::zbv},
                      TorchTable{"DualPipeV_p4_m11_v2", Family::dual_pipe_v}),
    [](const auto& info) { return info.param.file; });

// PyTorch draws 1F1B but does not execute its table: the last rank's forwards count from 1 there.
TEST(TorchTable1F1B, IsOursButForTheLastRank) {
  auto theirs = read_csv("tests/fixtures/schedules/1F1B_p4_m6.csv");
  EXPECT_THAT(message_of([&] { check(theirs); }), HasSubstr("1F1B_p4_m6.csv: 0F6 is missing"));
  theirs.num_micro_batches = 6;
  EXPECT_THAT(message_of([&] { check(theirs); }),
              HasSubstr("rank 3: 3F6: expected a micro-batch in [0, 5]; there are 6"));
  for (auto& action : theirs.ranks[3])
    if (action.kind == Kind::forward) --action.micro_batch;
  EXPECT_EQ(make_schedule({Family::one_f_one_b, 4, 6}).ranks, theirs.ranks);
}

TEST(ParseFamily, KnowsTheNamesOfOthers) {
  EXPECT_EQ(parse_family("1f1b"), Family::one_f_one_b);
  EXPECT_EQ(parse_family("zbh1"), Family::zb_h1);
  EXPECT_EQ(parse_family("ZBVZeroBubble"), Family::zbv);
  for (const auto& family : families()) EXPECT_EQ(parse_family(family.name), family.family);
  EXPECT_EQ(message_of([] { parse_family("Interleaved1F1"); }),
            "expected a schedule (GPipe, 1F1B, Interleaved1F1B, LoopedBFS, ZB-H1, ZB-H2, ZB-1p, "
            "ZB-2p, InterleavedZeroBubble, ZBVZeroBubble, DualPipeV) or a .csv file with one, got "
            "'Interleaved1F1'; did you mean 'Interleaved1F1B'?");
}

TEST(MakeSchedule, SaysWhatItNeeds) {
  const auto message = [](const ScheduleOptions& options) {
    return message_of([&] { make_schedule(options); });
  };
  EXPECT_EQ(message({Family::dual_pipe_v, 4, 5}),
            "DualPipeV: needs two micro-batches for each rank, 8 or more, got 5; take as many, or "
            "ZBVZeroBubble");
  EXPECT_EQ(message({Family::one_f_one_b, 4, 8, 2}),
            "1F1B: expected 1 stage on each rank, got 2; use Interleaved1F1B, LoopedBFS or "
            "InterleavedZeroBubble");
  EXPECT_EQ(message({Family::zbv, 4, 8, 3}),
            "ZBVZeroBubble: expected 2 stages on each rank, got 3");
  EXPECT_EQ(message({Family::interleaved, 4, 8, -1}),
            "Interleaved1F1B: expected 1 stage or more on each rank, got -1");
  EXPECT_EQ(message({.family = Family::zb_1p,
                     .num_ranks = 4,
                     .num_micro_batches = 8,
                     .times = {.weight = {1, 2}}}),
            "ZB-1p: expected one time, or one for each of 4 stages, got 2");
  EXPECT_THAT(message({Family::gpipe, 1024, 4096}), HasSubstr("4096 micro-batches are too many"));
  EXPECT_EQ(message({Family::gpipe, 0, 8}), "GPipe: expected at least 1 rank, got 0");
  EXPECT_EQ(message({Family::gpipe, 4, 0}), "GPipe: expected at least 1 micro-batch, got 0");
  EXPECT_EQ(
      message({.family = Family::gpipe, .num_ranks = 4, .num_micro_batches = 8, .memory_limit = 7}),
      "GPipe: rank 0 holds 8 activations at once; expected at most 7");
}

}  // namespace
}  // namespace tessera::schedule
