#include "tessera/checkpoint/formats/dcp_chunks.h"

#include <gtest/gtest.h>

#include <numeric>

namespace tessera::checkpoint {
namespace {

/// Cuts [0, size) into `parts` as DTensor does: ceil(size / parts) each, the last ones less or
/// none.
std::vector<std::pair<int64_t, int64_t>> cut(int64_t size, int64_t parts) {
  std::vector<std::pair<int64_t, int64_t>> result;
  const int64_t width = (size + parts - 1) / parts;
  for (int64_t i = 0; i < parts; ++i) {
    const int64_t begin = std::min(i * width, size);
    result.emplace_back(begin, std::min(width, size - begin));
  }
  return result;
}

std::vector<DcpChunk> grid(int64_t rows, int64_t cols, int64_t depth) {
  std::vector<DcpChunk> chunks;
  for (const auto& [row, height] : cut(rows, 3)) {
    for (const auto& [col, width] : cut(cols, 2)) {
      for (const auto& [layer, thickness] : cut(depth, 2))
        chunks.push_back({{row, col, layer}, {height, width, thickness}});
    }
  }
  return chunks;
}

TEST(DcpChunksTest, KnowsTilings) {
  EXPECT_EQ(tiling_problem({7, 5, 4}, grid(7, 5, 4)), "");
  EXPECT_EQ(tiling_problem({1, 5, 4}, grid(1, 5, 4)), "");  // some without elements
  EXPECT_EQ(tiling_problem({}, {{{}, {}}}), "");
  EXPECT_EQ(tiling_problem({0, 4}, {}), "");
  EXPECT_EQ(tiling_problem({0, 4}, {{{0, 0}, {0, 4}}}), "");
  // No cut goes through the whole of it.
  EXPECT_EQ(tiling_problem({3, 3}, {{{0, 0}, {1, 2}},
                                    {{0, 2}, {2, 1}},
                                    {{2, 1}, {1, 2}},
                                    {{1, 0}, {2, 1}},
                                    {{1, 1}, {1, 1}}}),
            "");
}

TEST(DcpChunksTest, KnowsWhatIsNone) {
  EXPECT_EQ(tiling_problem({4}, {{{0}, {2}}}), "its chunks hold 2 of 4 elements");
  EXPECT_EQ(tiling_problem({}, {}), "its chunks hold 0 of 1 elements");
  EXPECT_EQ(tiling_problem({4}, {{{0}, {3}}, {{2}, {2}}}), "its chunks overlap");
  EXPECT_EQ(tiling_problem({4}, {{{0}, {2}}, {{1}, {2}}}), "its chunks overlap and leave holes");
  EXPECT_EQ(tiling_problem({2, 2}, {{{0, 0}, {1, 2}}, {{0, 0}, {2, 1}}}),
            "its chunks overlap and leave holes");
  // The corners alone, without their signs, would pass for a tiling.
  EXPECT_EQ(tiling_problem({4}, {{{0}, {1}}, {{3}, {1}}, {{0}, {1}}, {{3}, {1}}}),
            "its chunks overlap and leave holes");
  std::vector<int64_t> shape(5, 2);
  std::vector<DcpChunk> corners;
  for (int i = 0; i < 32; ++i)
    corners.push_back({{i & 1, i >> 1 & 1, i >> 2 & 1, i >> 3 & 1, i >> 4}, {1, 1, 1, 1, 1}});
  EXPECT_EQ(tiling_problem(shape, corners),
            "it is sharded along 5 dims, and at most 4 can be read");
}

TEST(DcpChunksTest, RunsAgreeWithEveryElement) {
  const std::vector<int64_t> shape{7, 5, 4};
  constexpr int64_t kElements = 7 * 5 * 4;
  for (const auto& [begin, end] : std::vector<std::pair<int64_t, int64_t>>{
           {0, kElements}, {0, 1}, {139, 140}, {3, 4}, {17, 93}, {20, 40}, {60, 60}}) {
    std::vector<int> seen(kElements);
    for (const auto& chunk : grid(7, 5, 4)) {
      int64_t last = -1;
      for_each_run(shape, chunk, begin, end, [&](const ChunkRun& run) {
        EXPECT_GT(run.in_tensor, last);
        for (int64_t i = 0; i < run.count; ++i) {
          last = run.in_tensor + i;
          ++seen.at(static_cast<size_t>(last));
          const int64_t index[] = {last / 20 - chunk.offsets[0], last / 4 % 5 - chunk.offsets[1],
                                   last % 4 - chunk.offsets[2]};
          EXPECT_EQ(run.in_chunk + i,
                    (index[0] * chunk.sizes[1] + index[1]) * chunk.sizes[2] + index[2]);
        }
      });
    }
    for (int64_t i = 0; i < kElements; ++i)
      EXPECT_EQ(seen[static_cast<size_t>(i)], i >= begin && i < end) << i;
  }
}

TEST(DcpChunksTest, RunsAreAsLongAsCanBe) {
  const auto count = [](const std::vector<int64_t>& shape, const DcpChunk& chunk) {
    int64_t runs = 0;
    const auto elements =
        std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
    for_each_run(shape, chunk, 0, elements, [&](const ChunkRun&) { ++runs; });
    return runs;
  };
  EXPECT_EQ(count({6, 4, 5}, {{2, 0, 0}, {3, 4, 5}}), 1);
  EXPECT_EQ(count({6, 4, 5}, {{2, 1, 0}, {3, 2, 5}}), 3);
  EXPECT_EQ(count({6, 4, 5}, {{2, 1, 3}, {3, 2, 1}}), 6);
  EXPECT_EQ(count({}, {{}, {}}), 1);
}

}  // namespace
}  // namespace tessera::checkpoint
