#include "tessera/base/axes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tessera/base/testing.h"

namespace tessera::mesh {
namespace {

using tessera::testing::message_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Layout, TpIsInnermostAndPpOutermost) {
  const MeshShape shape{.pp = 2, .dp_shard = 3, .tp = 4};
  EXPECT_EQ(coordinates_of(shape, 1), (Coordinates{0, 0, 0, 0, 1, 0, 1, 0, 0}));
  EXPECT_EQ(coordinates_of(shape, 4), (Coordinates{0, 0, 1, 0, 0, 0, 0, 0, 1}));
  EXPECT_EQ(coordinates_of(shape, 12), (Coordinates{1, 0, 0, 0, 0, 0, 0, 0, 0}));
}

TEST(Layout, EpBorrowsRanksFromTheDataAxes) {
  const auto group = [](const MeshShape& shape, std::vector<AxisName> axes, int rank) {
    return group_of(shape, axes, rank);
  };
  using enum AxisName;
  const MeshShape sharded{.dp_replicate = 2, .dp_shard = 4, .ep = 2};
  EXPECT_EQ(sharded.num_ranks(), 8);
  EXPECT_THAT(group(sharded, {ep}, 5), ElementsAre(4, 5));
  EXPECT_THAT(group(sharded, {expert_shard}, 5), ElementsAre(5, 7));
  EXPECT_THAT(group(sharded, {expert_replicate}, 5), ElementsAre(1, 5));
  EXPECT_THAT(group(sharded, {expert_replicate, expert_shard}, 5), ElementsAre(1, 3, 5, 7));
  EXPECT_THAT(group(sharded, {dp_shard}, 5), ElementsAre(4, 5, 6, 7));
  EXPECT_THAT(spanning(sharded, std::vector{tp, ep, dp_shard, dp_shard}), ElementsAre(dp_shard));
  EXPECT_THAT(spanning(sharded, std::vector{ep, expert_shard}), ElementsAre(ep, expert_shard));

  const MeshShape replicated{.pp = 2, .dp_replicate = 4, .ep = 2, .tp = 2};
  EXPECT_THAT(group(replicated, {ep}, 12), ElementsAre(12, 14));
  EXPECT_THAT(group(replicated, {expert_replicate}, 12), ElementsAre(8, 12));
  EXPECT_THAT(spanning(replicated, std::vector{dp_replicate, ep}), ElementsAre(dp_replicate));
  EXPECT_THAT(spanning(replicated, std::vector{tp, ep, dp_shard}), ElementsAre(tp, ep));
}

TEST(Layout, EpTakesTheRanksOfTpThatEtpLeavesFirst) {
  const auto group = [](const MeshShape& shape, std::vector<AxisName> axes, int rank) {
    return group_of(shape, axes, rank);
  };
  using enum AxisName;
  const MeshShape both{.dp_shard = 4, .ep = 4, .tp = 2, .etp = 1};
  EXPECT_EQ(both.num_ranks(), 8);
  EXPECT_THAT(group(both, {ep}, 5), ElementsAre(4, 5, 6, 7));
  EXPECT_THAT(group(both, {expert_shard}, 5), ElementsAre(1, 5));
  EXPECT_THAT(group(both, {tp}, 5), ElementsAre(4, 5));
  EXPECT_THAT(spanning(both, std::vector{tp, ep}), ElementsAre(ep));

  const MeshShape half{.dp_replicate = 2, .ep = 2, .tp = 4, .etp = 2};
  EXPECT_THAT(group(half, {etp}, 5), ElementsAre(4, 5));
  EXPECT_THAT(group(half, {ep}, 5), ElementsAre(5, 7));
  EXPECT_THAT(group(half, {expert_replicate}, 5), ElementsAre(1, 5));
  EXPECT_EQ(half.expert_shard(), 1);

  const MeshShape none{.dp_shard = 2, .tp = 4, .etp = 1};
  EXPECT_TRUE(none.experts_apart());
  EXPECT_THAT(group(none, {expert_shard}, 5), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  EXPECT_EQ(describe(none), "dp_shard 2, tp 4, etp 1");
  EXPECT_FALSE((MeshShape{.dp_shard = 2, .tp = 4, .etp = 4}).experts_apart());
  EXPECT_THAT(spanning({.tp = 4, .etp = 4}, std::vector{tp, etp}), ElementsAre(tp));
}

TEST(Layout, EpThatDoesNotDivideNamesTheAxisItBorrowsFrom) {
  EXPECT_EQ(message_of([] { check_shape({.dp_replicate = 2, .dp_shard = 4, .ep = 3}, 8); }),
            "ep: expected a divisor of the 4 ranks of dp_shard, got 3; set one of 1, 2, 4");
  EXPECT_EQ(message_of([] { check_shape({.dp_replicate = 2, .ep = 4}, 2); }),
            "ep: expected a divisor of the 2 ranks of dp_replicate, got 4; set one of 1, 2");
  EXPECT_EQ(message_of([] { check_shape({.ep = 0}, 1); }),
            "ep: expected a divisor of the 1 ranks of dp_replicate, got 0; set one of 1");
  EXPECT_EQ(message_of([] { check_shape({.tp = 4, .etp = 3}, 4); }),
            "etp: expected a divisor of the 4 ranks of tp, got 3; set one of 1, 2, 4");
  EXPECT_EQ(message_of([] { check_shape({.dp_shard = 3, .ep = 4, .tp = 4, .etp = 2}, 12); }),
            "ep: expected a divisor of the 3 ranks of dp_shard times a divisor of the 2 of tp that "
            "etp 2 leaves, got 4; set one of 1, 2, 3, 6");
}

TEST(Layout, GroupsAlongOneAxisAndSeveral) {
  const MeshShape shape{.dp_replicate = 2, .dp_shard = 2, .tp = 2};
  const auto group = [&](std::vector<AxisName> axes, int rank) {
    return group_of(shape, axes, rank);
  };
  EXPECT_THAT(group({AxisName::tp}, 5), ElementsAre(4, 5));
  EXPECT_THAT(group({AxisName::dp_replicate}, 5), ElementsAre(1, 5));
  EXPECT_THAT(group({AxisName::dp_shard, AxisName::dp_replicate}, 5), ElementsAre(1, 3, 5, 7));
  EXPECT_THAT(group({}, 5), ElementsAre(5));
}

TEST(Layout, EveryAxisPartitionsThousandsOfRanks) {
  const MeshShape shape{
      .pp = 4, .dp_replicate = 3, .dp_shard = 16, .cp = 2, .ep = 4, .tp = 8, .etp = 4};
  const int world = shape.num_ranks();
  ASSERT_EQ(world, 3072);
  for (size_t d = 0; d < kNumAxes; ++d) {
    std::vector<int> times(static_cast<size_t>(world), 0);
    for (int rank = 0; rank < world; ++rank) {
      const auto group = group_of(shape, std::vector{static_cast<AxisName>(d)}, rank);
      ASSERT_EQ(static_cast<int>(group.size()), shape.sizes()[d]);
      ASSERT_EQ(group[coordinates_of(shape, rank)[d]], rank);
      if (group.front() != rank) continue;
      for (const int member : group) ++times[member];
    }
    EXPECT_THAT(times, ::testing::Each(1)) << kTexts<AxisName>[d];
  }
}

TEST(Layout, AShapeThatDoesNotFitIsOneLineWithTheFix) {
  EXPECT_NO_THROW(check_shape({.dp_replicate = 2, .tp = 2}, 4));
  EXPECT_EQ(message_of([] { check_shape({.dp_replicate = 2, .tp = 2}, 6); }),
            "mesh (dp_replicate 2, tp 2): expected 4 ranks, got 6; set dp_replicate to 3, or start "
            "4 ranks");
  EXPECT_EQ(message_of([] { check_shape({.tp = 4}, 6); }),
            "mesh (tp 4): expected 4 ranks, got 6; start 8 ranks");
  EXPECT_EQ(message_of([] { check_shape({.tp = 4}, 1); }),
            "mesh (tp 4): expected 4 ranks, got 1; start 4 ranks");
  EXPECT_EQ(message_of([] { check_shape({.cp = 0}, 1); }), "cp: expected at least 1, got 0");
}

TEST(Layout, AnUnknownAxisNamesTheNearest) {
  EXPECT_THAT(message_of([] { axis_named("dp_shrad"); }), HasSubstr("did you mean 'dp_shard'?"));
}

}  // namespace
}  // namespace tessera::mesh
