#include "tessera/train/matmul_peak.h"

#include <gtest/gtest.h>

namespace tessera::train {
namespace {

TEST(PublishedPeak, IsOfTheLongestNameThatFits) {
  EXPECT_EQ(published_peak("NVIDIA H200"), 989.4e12);
  EXPECT_EQ(published_peak("NVIDIA H200 NVL"), 835.5e12);
  EXPECT_EQ(published_peak("NVIDIA H20"), 148e12);
  EXPECT_EQ(published_peak("NVIDIA H100 80GB HBM3"), 989.4e12);
  EXPECT_EQ(published_peak("NVIDIA A100-SXM4-80GB"), 312e12);
  EXPECT_FALSE(published_peak("NVIDIA T4"));
}

}  // namespace
}  // namespace tessera::train
