#include "tessera/plan/buffer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tessera::plan {
namespace {

using parallel::Placement;
using ::testing::ElementsAre;

TEST(Buffer, PlacementsDifferInWhatStays) {
  const auto of = [](Placement placement) {
    return plan_buffer(10, {.placement = placement, .num_slices = 2});
  };
  for (const auto placement : {Placement::replicate, Placement::shard_optimizer}) {
    EXPECT_TRUE(of(placement).keeps_whole && of(placement).keeps_gradient);
    EXPECT_TRUE(of(placement).slice_in_whole && of(placement).gradient_slice_in_gradient);
  }
  EXPECT_TRUE(of(Placement::shard_gradients).slice_in_whole);
  EXPECT_FALSE(of(Placement::shard_gradients).keeps_gradient);
  EXPECT_FALSE(of(Placement::shard_gradients).gradient_slice_in_gradient);
  EXPECT_FALSE(of(Placement::full_shard).keeps_whole || of(Placement::full_shard).slice_in_whole);
}

TEST(Buffer, OneRankKeepsEverything) {
  const auto plan = plan_buffer(10, {.placement = Placement::full_shard});
  EXPECT_TRUE(plan.keeps_whole && plan.keeps_gradient && plan.slice_in_whole);
}

TEST(Buffer, ASliceOfAnotherTypeOrPlaceIsNoPartOfTheWhole) {
  EXPECT_FALSE(
      plan_buffer(10, {.whole_bytes = 2, .slice_has_type_of_whole = false}).slice_in_whole);
  const auto offloaded = plan_buffer(10, {.placement = Placement::full_shard,
                                          .num_slices = 2,
                                          .offloaded = true,
                                          .offloads_by_copy = true,
                                          .device_is_host = false});
  EXPECT_TRUE(offloaded.keeps_copy);
  EXPECT_EQ(offloaded.slice, Tier::host);
  EXPECT_EQ(offloaded.states, Tier::host);
  const auto on_drives = plan_buffer(10, {.states_on_drives = true});
  EXPECT_EQ(on_drives.slice, Tier::device);
  EXPECT_EQ(on_drives.states, Tier::drive);
  EXPECT_TRUE(on_drives.slice_in_whole);
  EXPECT_FALSE(offloaded.slice_in_whole || offloaded.gradient_slice_in_gradient);
}

TEST(Buffer, TheLastUnitsAreOffloadedWhole) {
  EXPECT_THAT(offloaded_units({4, 3, 3}, 0), ElementsAre(false, false, false));
  EXPECT_THAT(offloaded_units({4, 3, 3}, 0.3), ElementsAre(false, false, true));
  EXPECT_THAT(offloaded_units({4, 3, 3}, 0.4), ElementsAre(false, true, true));
  EXPECT_THAT(offloaded_units({4, 3, 3}, 1), ElementsAre(true, true, true));
}

}  // namespace
}  // namespace tessera::plan
