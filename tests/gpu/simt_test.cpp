// The host's stand-in for a GPU: it must find what is wrong with a kernel.
#include "tests/support/simt.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <set>

namespace tessera {
namespace {

constexpr int kThreads = 96;

TEST(Simt, EveryThreadOfEveryBlockRunsOnce) {
  std::array<std::array<int, kThreads>, 5> seen{};
  simt::run(5, kThreads, [&] {
    ASSERT_EQ(blockDim.x, kThreads);
    ASSERT_EQ(gridDim.x, 5U);
    ++seen.at(blockIdx.x).at(threadIdx.x);
  });
  for (const auto& block : seen) {
    for (const int count : block) EXPECT_EQ(count, 1);
  }
}

TEST(Simt, ShufflesGoToTheOtherLane) {
  std::array<float, kThreads> got{};
  simt::run(1, kThreads, [&] {
    float value = static_cast<float>(threadIdx.x);
    value += __shfl_xor_sync(0xffffffffu, value, 16);
    got.at(threadIdx.x) = value;
  });
  for (int i = 0; i < kThreads; ++i) EXPECT_EQ(got.at(i), static_cast<float>(i + (i ^ 16)));
}

TEST(Simt, ABlockSharesMemoryThatStartsAsNaN) {
  std::array<float, kThreads> got{};
  simt::run(
      3, kThreads,
      [&] {
        auto* shared = static_cast<float*>(simt::shared_memory());
        ASSERT_TRUE(std::isnan(shared[threadIdx.x]));
        __syncthreads();
        shared[threadIdx.x] = static_cast<float>(threadIdx.x);
        __syncthreads();
        got.at(threadIdx.x) = shared[kThreads - 1 - threadIdx.x];
      },
      kThreads * sizeof(float));
  for (int i = 0; i < kThreads; ++i) EXPECT_EQ(got.at(i), static_cast<float>(kThreads - 1 - i));
}

/// Thread 0 sums what the others wrote, with or without a barrier between.
int sum_of_others(bool barrier) {
  std::array<int, kThreads> shared{};
  int sum = 0;
  simt::run(1, kThreads, [&] {
    shared.at(threadIdx.x) = 1;
    if (barrier) __syncthreads();
    if (threadIdx.x != 0) return;
    for (const int value : shared) sum += value;
  });
  return sum;
}

TEST(Simt, AMissingBarrierShowsInSomeOrder) {
  std::set<int> sums;
  for (uint64_t order = 0; order < 20; ++order) {
    simt::set_order(order);
    EXPECT_EQ(sum_of_others(true), kThreads);
    sums.insert(sum_of_others(false));
  }
  EXPECT_GT(sums.size(), 1U);
}

TEST(SimtDeathTest, ABarrierThatNotAllReachEndsTheTest) {
  EXPECT_DEATH(simt::run(1, kThreads,
                         [] {
                           if (threadIdx.x < 32) {
                             __shfl_xor_sync(0xffffffffu, threadIdx.x, 1);
                             if (threadIdx.x == 0) __syncthreads();
                             if (threadIdx.x != 0) __shfl_xor_sync(0xffffffffu, threadIdx.x, 1);
                           }
                           __syncthreads();
                         }),
               "different barriers");
}

}  // namespace
}  // namespace tessera
