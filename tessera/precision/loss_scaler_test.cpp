#include "tessera/precision/loss_scaler.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <string_view>
#include <vector>

namespace tessera::precision {
namespace {

struct Point {
  double scale;
  int64_t growth_tracker;
};

// x: a step with an overflow. The sequence was recorded from torch.amp.GradScaler(
// init_scale=65536, growth_interval=3) of PyTorch 2.
constexpr std::string_view kSteps = "..x......xx.x....x.......";
const std::vector<Point> kRecorded = {{65536, 1}, {65536, 2}, {32768, 0}, {32768, 1},  {32768, 2},
                                      {65536, 0}, {65536, 1}, {65536, 2}, {131072, 0}, {65536, 0},
                                      {32768, 0}, {32768, 1}, {16384, 0}, {16384, 1},  {16384, 2},
                                      {32768, 0}, {32768, 1}, {16384, 0}, {16384, 1},  {16384, 2},
                                      {32768, 0}, {32768, 1}, {32768, 2}, {65536, 0},  {65536, 1}};

TEST(LossScaler, FollowsTorchsGradScaler) {
  LossScaler scaler({.growth_interval = 3});
  for (size_t i = 0; i < kSteps.size(); ++i) {
    scaler.update(kSteps[i] == 'x');
    EXPECT_EQ(scaler.scale(), kRecorded[i].scale) << i;
    EXPECT_EQ(scaler.state().growth_tracker, kRecorded[i].growth_tracker) << i;
  }
  EXPECT_EQ(scaler.skipped_steps(), 5);
}

TEST(LossScaler, DoesNotGrowOutOfFloat32) {  // recorded, too
  LossScaler scaler({.initial_scale = 0x1p126, .growth_interval = 1});
  for (int i = 0; i < 4; ++i) {
    scaler.update(false);
    EXPECT_EQ(scaler.scale(), 0x1p127);
  }
}

TEST(LossScaler, GoesOnFromItsState) {
  LossScaler whole({.growth_interval = 3}), first({.growth_interval = 3});
  for (size_t i = 0; i < 12; ++i) first.update(kSteps[i] == 'x');
  LossScaler second({.growth_interval = 3});
  second.load(first.state());
  for (size_t i = 0; i < kSteps.size(); ++i) {
    whole.update(kSteps[i] == 'x');
    if (i >= 12) second.update(kSteps[i] == 'x');
  }
  EXPECT_EQ(second.scale(), whole.scale());
  EXPECT_EQ(second.state().growth_tracker, whole.state().growth_tracker);
  EXPECT_EQ(second.skipped_steps(), whole.skipped_steps());
}

TEST(LossScaler, RefusesOptionsThatCannotWork) {
  EXPECT_THROW(LossScaler({.initial_scale = 0}), c10::ValueError);
  EXPECT_THROW(LossScaler({.growth_factor = 1}), c10::ValueError);
  EXPECT_THROW(LossScaler({.backoff_factor = 1}), c10::ValueError);
  EXPECT_THROW(LossScaler({.growth_interval = 0}), c10::ValueError);
}

}  // namespace
}  // namespace tessera::precision
