#include "tessera/offload/stored_regions.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "tessera/base/error.h"
#include "tests/support/temporary_folder.h"

namespace tessera::offload {
namespace {

class StoredRegionsTest : public ::testing::Test {
 protected:
  const testing::TemporaryFolder folder_;

  StorageOptions options(int64_t host_memory) const {
    return {.space = {.paths = {folder_.path() / "a", folder_.path() / "b"},
                      .block_bytes = 16 << 10,
                      .any_file_system = true},
            .host_memory = host_memory};
  }
};

TEST_F(StoredRegionsTest, HoldWhatWasWrittenInAnyOrder) {
  const std::vector<int64_t> sizes = {100, 40960, 4096, 70000, 1, 33000, 50000};
  StoredRegions regions(sizes, options(3 * 72 << 10));
  EXPECT_LE(regions.memory_bytes(), 3 * 72 << 10);
  std::vector<std::vector<std::byte>> expected;
  for (const int64_t size : sizes) expected.emplace_back(static_cast<size_t>(size));
  std::mt19937 random(7);
  for (int i = 0; i < 2000; ++i) {
    const size_t index = random() % sizes.size();
    auto& own = expected[index];
    switch (random() % 4) {
      case 0:
        ASSERT_TRUE(std::ranges::equal(regions.read(index), own)) << i;
        break;
      case 1: {  // one byte of it
        const size_t at = random() % own.size();
        own[at] = std::byte(random());
        regions.change(index)[at] = own[at];
        break;
      }
      case 2: {  // all of it, in two halves
        std::ranges::generate(own, [&] { return std::byte(random()); });
        const auto half = own.size() / 2;
        std::copy_n(own.begin(), half, regions.change(index, /*all=*/true).begin());
        std::copy(own.begin() + static_cast<std::ptrdiff_t>(half), own.end(),
                  regions.change(index, /*all=*/true).begin() + static_cast<std::ptrdiff_t>(half));
        break;
      }
      default:
        regions.read_ahead(std::vector<size_t>{index, (index + 1) % sizes.size()});
    }
  }
  regions.flush();
  for (size_t i = 0; i < sizes.size(); ++i)
    EXPECT_TRUE(std::ranges::equal(regions.read(i), expected[i])) << i;
  EXPECT_GT(regions.space().counters().read_bytes, 0);
}

TEST_F(StoredRegionsTest, WhatIsReadAheadIsThereWithoutAnotherRead) {
  StoredRegions regions({16384, 16384, 16384, 16384, 16384}, options(4 * 16384));
  for (size_t i = 0; i < 5; ++i) regions.change(i)[0] = std::byte(i);
  regions.flush();
  regions.read(2);  // 3 and 4 are there, too, 0 and 1 are not
  const auto before = regions.space().counters().read_bytes;
  regions.read_ahead(std::vector<size_t>{0, 1});
  EXPECT_EQ(regions.read(0)[0], std::byte(0));
  EXPECT_EQ(regions.read(1)[0], std::byte(1));
  EXPECT_EQ(regions.space().counters().read_bytes - before, 2 * 16384);
}

TEST_F(StoredRegionsTest, MemoryForFewerThanThreeIsRefused) {
  try {
    const StoredRegions regions({100, 16384}, options(40 << 10));
    FAIL();
  } catch (const UserError& error) {
    EXPECT_STREQ(error.what(),
                 "host_memory: expected room for 3 of the largest unit's slices (16.0 KiB each), "
                 "got 40.0 KiB as what is on drives shares it; set more");
  }
}

}  // namespace
}  // namespace tessera::offload
