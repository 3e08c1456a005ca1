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
  EXPECT_EQ(coordinates_of(shape, 1), (Coordinates{0, 0, 0, 0, 0, 1}));
  EXPECT_EQ(coordinates_of(shape, 4), (Coordinates{0, 0, 1, 0, 0, 0}));
  EXPECT_EQ(coordinates_of(shape, 12), (Coordinates{1, 0, 0, 0, 0, 0}));
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
  const MeshShape shape{.pp = 4, .dp_replicate = 3, .dp_shard = 16, .cp = 2, .ep = 2, .tp = 8};
  const int world = shape.num_ranks();
  ASSERT_EQ(world, 6144);
  for (size_t d = 0; d < kNumAxes; ++d) {
    std::vector<int> times(static_cast<size_t>(world), 0);
    for (int rank = 0; rank < world; ++rank) {
      ASSERT_EQ(rank_of(shape, coordinates_of(shape, rank)), rank);
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
