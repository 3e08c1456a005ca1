// The caching allocator: counts, reuse, alignment, bounds, threads.
#include "tessera/kernels/cpu/memory.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace tessera::kernels {
namespace {

at::Tensor bytes(int64_t size) { return at::empty({size}, at::kByte); }

class CachingAllocatorTest : public ::testing::Test {
 protected:
  void SetUp() override {
    install_caching_allocator();
    trim();
    reset_peak();
    before_ = allocator_stats();
  }
  AllocatorStats before_;
};

TEST_F(CachingAllocatorTest, CountsWhatIsAllocatedAndThePeak) {
  auto a = bytes(1 << 20);
  auto b = bytes(100);
  EXPECT_EQ(allocator_stats().allocated_bytes - before_.allocated_bytes, (1 << 20) + 100);
  a.reset();
  EXPECT_EQ(allocator_stats().allocated_bytes - before_.allocated_bytes, 100);
  EXPECT_EQ(allocator_stats().peak_bytes - before_.allocated_bytes, (1 << 20) + 100);
  reset_peak();
  EXPECT_EQ(allocator_stats().peak_bytes - before_.allocated_bytes, 100);
}

TEST_F(CachingAllocatorTest, UsesAKeptBlockAgainIfLittleIsWasted) {
  auto first = bytes(8 << 20);
  void* place = first.data_ptr();
  EXPECT_EQ(reinterpret_cast<uintptr_t>(place) % 64, 0u);
  first.reset();
  const auto calls = allocator_stats().system_calls;
  auto again = bytes((8 << 20) - (1 << 19));
  EXPECT_EQ(again.data_ptr(), place);
  again.reset();
  auto smaller = bytes(4 << 20);  // would waste half
  EXPECT_NE(smaller.data_ptr(), place);
  EXPECT_EQ(allocator_stats().system_calls, calls + 1);
}

// Small pages are slow to look up: a matrix of less than one huge page shares one with others.
TEST_F(CachingAllocatorTest, BlocksLieNextToEachOtherInHugePages) {
  constexpr int64_t kSize = 700 << 10;
  std::vector<at::Tensor> blocks;
  for (int i = 0; i < 200; ++i) blocks.push_back(bytes(kSize).fill_(i));
  int apart = 0;
  for (size_t i = 1; i < blocks.size(); ++i) {
    const auto* before = blocks[i - 1].const_data_ptr<uint8_t>();
    const auto distance = blocks[i].const_data_ptr<uint8_t>() - before;
    apart += distance < kSize || distance > kSize + 8192;
    EXPECT_EQ(before[kSize - 1], i - 1);
  }
  EXPECT_LE(apart, 3);  // 137 MiB lie in three regions or four
  blocks.clear();
  trim();
  EXPECT_EQ(allocator_stats().reserved_bytes, before_.reserved_bytes);
  EXPECT_EQ(bytes(kSize).fill_(1).sum().item<int64_t>(), kSize);
}

TEST_F(CachingAllocatorTest, TrimGivesKeptBlocksBack) {
  bytes(64 << 20).zero_();
  EXPECT_GE(allocator_stats().reserved_bytes - before_.reserved_bytes, 64 << 20);
  trim();
  EXPECT_EQ(allocator_stats().reserved_bytes, before_.reserved_bytes);
}

TEST_F(CachingAllocatorTest, KeepsWithinAnEighthOfThePeak) {
  for (int64_t mib = 1; mib <= 200; ++mib) bytes(mib << 20);  // no block fits the next request
  const auto stats = allocator_stats();
  EXPECT_LE(stats.reserved_bytes, (stats.peak_bytes + (200 << 20)) * 9 / 8 + (32 << 20));
}

TEST_F(CachingAllocatorTest, ThreadsMayFreeEachOthersBlocks) {
  std::vector<at::Tensor> blocks(400);
  const auto work = [&](size_t first, bool fill) {
    for (size_t i = first; i < blocks.size(); i += 2) {
      if (fill) {
        blocks[i] = at::full({static_cast<int64_t>(1000 * (i + 1))}, static_cast<int64_t>(i));
      } else {
        EXPECT_EQ(blocks[i].max().item<int64_t>(), static_cast<int64_t>(i));
        EXPECT_EQ(blocks[i].min().item<int64_t>(), static_cast<int64_t>(i));
        blocks[i].reset();
      }
    }
  };
  for (int round = 0; round < 3; ++round) {
    std::thread a(work, 0, true), b(work, 1, true);
    a.join();
    b.join();
    std::thread c(work, 1, false), d(work, 0, false);
    c.join();
    d.join();
  }
  EXPECT_EQ(allocator_stats().allocated_bytes, before_.allocated_bytes);
}

TEST_F(CachingAllocatorTest, EmptyTensorsAndResizing) {
  auto x = at::empty({0});
  x.resize_({1 << 18}).fill_(2);
  x.resize_({1 << 20});
  EXPECT_EQ(x[0].item<float>(), 2);
}

}  // namespace
}  // namespace tessera::kernels
