#include "tessera/data/packing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

namespace tessera::data {
namespace {

std::vector<int64_t> lengths_of(const Packing& packing, int64_t row,
                                const std::vector<int64_t>& lengths) {
  std::vector<int64_t> found;
  for (const uint32_t document : packing.row(row)) found.push_back(lengths[document]);
  return found;
}

TEST(Packing, FillsTheTightestRow) {
  const std::vector<int64_t> lengths{3, 7, 4, 6, 5, 5, 1};
  const auto packing = pack(lengths, 10);
  ASSERT_EQ(packing.num_rows(), 4);
  EXPECT_EQ(lengths_of(packing, 0, lengths), (std::vector<int64_t>{7, 3}));
  EXPECT_EQ(lengths_of(packing, 1, lengths), (std::vector<int64_t>{6, 4}));
  EXPECT_EQ(lengths_of(packing, 2, lengths), (std::vector<int64_t>{5, 5}));
  EXPECT_EQ(lengths_of(packing, 3, lengths), (std::vector<int64_t>{1}));
}

TEST(Packing, HoldsEveryDocumentOnceAndIsAlmostFull) {
  std::mt19937_64 random(3);
  // As conversations are long: a logarithmic normal distribution.
  std::lognormal_distribution<double> length(5.5, 0.9);
  constexpr int64_t kRow = 2048;
  std::vector<int64_t> lengths(20'000);
  for (auto& each : lengths) {
    each = std::clamp<int64_t>(static_cast<int64_t>(std::llround(length(random))), 1, kRow);
  }
  const auto packing = pack(lengths, kRow);
  std::vector<int> seen(lengths.size());
  for (int64_t row = 0; row < packing.num_rows(); ++row) {
    const auto in_row = lengths_of(packing, row, lengths);
    EXPECT_LE(std::accumulate(in_row.begin(), in_row.end(), int64_t{0}), kRow);
    for (const uint32_t document : packing.row(row)) ++seen[document];
  }
  EXPECT_TRUE(std::ranges::all_of(seen, [](int times) { return times == 1; }));
  const auto tokens = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  EXPECT_GT(static_cast<double>(tokens) / static_cast<double>(packing.num_rows() * kRow), 0.98);
}

TEST(Packing, OneEach) {
  const auto packing = one_each(3);
  ASSERT_EQ(packing.num_rows(), 3);
  EXPECT_EQ(packing.row(2).size(), 1);
  EXPECT_EQ(packing.row(2)[0], 2);
  EXPECT_EQ(pack({}, 4).num_rows(), 0);
}

}  // namespace
}  // namespace tessera::data
