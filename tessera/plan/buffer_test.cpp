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
  EXPECT_FALSE(offloaded.slice_in_whole || offloaded.gradient_slice_in_gradient);
}

TEST(Buffer, DrivesTakeStatesThenMastersThenSlices) {
  using parallel::OnDrives;
  const auto states = plan_buffer(10, {.on_drives = OnDrives::masters});  // there is no master
  EXPECT_EQ(states.states, Tier::drive);
  EXPECT_EQ(states.slice, Tier::device);
  EXPECT_TRUE(states.slice_in_whole && !states.master_on_drives);
  BufferOptions options{.placement = Placement::full_shard,
                        .num_slices = 2,
                        .on_drives = OnDrives::masters,
                        .whole_bytes = 2,
                        .slice_has_type_of_whole = false};
  const auto masters = plan_buffer(10, options);
  EXPECT_TRUE(masters.master_on_drives && masters.keeps_copy && !masters.slice_in_whole);
  EXPECT_EQ(masters.slice, Tier::device);
  options.placement = Placement::shard_gradients;
  EXPECT_TRUE(plan_buffer(10, options).master_on_drives);
  EXPECT_FALSE(plan_buffer(10, options).keeps_copy);  // it is part of the whole parameters
  options.placement = Placement::full_shard;
  options.on_drives = OnDrives::parameters;
  const auto all = plan_buffer(10, options);
  EXPECT_EQ(all.slice, Tier::drive);
  EXPECT_EQ(all.gradient, Tier::device);
  EXPECT_TRUE(all.master_on_drives && !all.keeps_copy);
  options.num_slices = 1;
  EXPECT_FALSE(plan_buffer(10, options).keeps_whole);  // one rank alone, too
  options.trained = false;
  EXPECT_FALSE(plan_buffer(10, options).master_on_drives);
  options.trained = true;
  options.device_is_host = false;
  options.offloaded = true;
  const auto on_gpu = plan_buffer(10, options);
  EXPECT_EQ(on_gpu.states, Tier::drive);
  EXPECT_EQ(on_gpu.slice, Tier::host);
  EXPECT_FALSE(on_gpu.master_on_drives);
}

TEST(Buffer, TheLastUnitsAreOffloadedWhole) {
  EXPECT_THAT(offloaded_units({4, 3, 3}, 0), ElementsAre(false, false, false));
  EXPECT_THAT(offloaded_units({4, 3, 3}, 0.3), ElementsAre(false, false, true));
  EXPECT_THAT(offloaded_units({4, 3, 3}, 0.4), ElementsAre(false, true, true));
  EXPECT_THAT(offloaded_units({4, 3, 3}, 1), ElementsAre(true, true, true));
}

}  // namespace
}  // namespace tessera::plan
