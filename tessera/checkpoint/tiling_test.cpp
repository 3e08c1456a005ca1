// Ranges tile a tensor or do not: against a count of every element, and cuts as ranks make them.
#include "tessera/checkpoint/tiling.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>
#include <set>

#include "tessera/checkpoint/shard.h"
#include "tessera/data/testing.h"

namespace tessera::checkpoint {
namespace {

using data::testing::refusal;

/// What untiled should say of ranges that are each right by themselves, told from every element.
bool tile(int64_t num_elements, const std::vector<StoredExtent>& ranges) {
  std::vector<int> count(static_cast<size_t>(num_elements));
  std::set<int64_t> strides;
  for (const auto& range : ranges) {
    if (!range.stripe.whole()) strides.insert(range.stripe.stride);
    for (int64_t k = range.begin; k < range.begin + range.length; ++k) {
      ++count[static_cast<size_t>(range.stripe.position(k))];
    }
  }
  return strides.size() <= 1 && std::ranges::count(count, 1) == num_elements;
}

int64_t up_to(std::mt19937_64& random, int64_t most) {
  return static_cast<int64_t>(random() % static_cast<uint64_t>(most + 1));
}

TEST(Untiled, AgreesWithACountOfEveryElement) {
  std::mt19937_64 random(1);
  int num_tiled = 0, num_striped = 0;
  for (int i = 0; i < 200'000; ++i) {
    constexpr int64_t kElements = 12;
    const int64_t strides[] = {2, 3, 4, 6, 12};
    const int64_t usual = strides[up_to(random, 4)];
    std::vector<StoredExtent> ranges(static_cast<size_t>(1 + up_to(random, 3)));
    for (auto& range : ranges) {
      const int64_t stride = up_to(random, 30) == 0 ? strides[up_to(random, 4)] : usual;
      const int64_t offset = up_to(random, 1) * up_to(random, stride - 1);
      const int64_t run =
          up_to(random, 2) == 0 ? stride - offset : 1 + up_to(random, stride - offset - 1);
      if (up_to(random, 3) > 0) range.stripe = {offset, run, stride};
      const int64_t count = range.stripe.taken(kElements);
      range.begin = up_to(random, 2) == 0 ? up_to(random, count) : 0;
      range.length =
          up_to(random, 2) == 0 ? up_to(random, count - range.begin) : count - range.begin;
    }
    const bool expected = tile(kElements, ranges);
    ASSERT_EQ(untiled(kElements, ranges).empty(), expected) << i;
    const bool striped = std::ranges::any_of(
        ranges, [](const StoredExtent& range) { return !range.stripe.whole(); });
    num_tiled += expected;
    num_striped += expected && striped;
  }
  EXPECT_GT(num_tiled, 5000);
  EXPECT_GT(num_striped, 1000);
}

TEST(Untiled, NamesTheFirstElementThatIsWrong) {
  const Stripe left{0, 3, 8}, right{3, 5, 8};
  EXPECT_EQ(untiled(24, std::vector<StoredExtent>{{{0, 9, left}, 0, 0}, {{0, 15, right}, 0, 0}}),
            "");
  EXPECT_EQ(untiled(24, std::vector<StoredExtent>{{{0, 15, right}, 0, 0}}), "no element 0");
  EXPECT_EQ(untiled(24, std::vector<StoredExtent>{{{0, 9, left}, 0, 0}}), "no element 3");
  EXPECT_EQ(untiled(24, std::vector<StoredExtent>{{{0, 8, left}, 0, 0}, {{0, 15, right}, 0, 0}}),
            "no element 18");
  EXPECT_EQ(untiled(24,
                    std::vector<StoredExtent>{
                        {{0, 9, left}, 0, 0}, {{0, 15, right}, 0, 0}, {{9, 1}, 0, 0}}),
            "element 9 twice");
  EXPECT_EQ(
      untiled(24, std::vector<StoredExtent>{{{0, 9, left}, 0, 0}, {{0, 18, {2, 6, 8}}, 0, 0}}),
      "element 2 twice");
}

TEST(Untiled, IsQuickHoweverLongTheTensor) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max() - 1;  // even
  const std::vector<StoredExtent> halves{{{0, kMost / 2, {0, 1, 2}}, 0, 0},
                                         {{0, kMost / 2, {1, 1, 2}}, 0, 0}};
  EXPECT_EQ(untiled(kMost, halves), "");
  EXPECT_EQ(untiled(kMost, std::vector{halves[0]}), "no element 1");
  EXPECT_EQ(untiled(kMost, std::vector{halves[0], halves[1], halves[1]}), "element 1 twice");
  EXPECT_EQ(untiled(kMost + 1, halves), "a stripe 0+1/2");
  EXPECT_EQ(untiled(kMost, std::vector<StoredExtent>{{{kMost, kMost}, 0, 0}}),
            "9223372036854775806 elements from 9223372036854775806 on, of 9223372036854775806");
}

/// A tensor [A, B, C] over ranks: cut along B, then each part, flattened, at any elements; what a
/// rank holds with others, they cut once more.
std::vector<StoredExtent> cut_as_ranks_do(std::mt19937_64& random,
                                          const std::vector<int64_t>& shape) {
  const int64_t stride = shape[1] * shape[2];
  std::vector<StoredExtent> ranges;
  const auto cut = [&](const Stripe& stripe) {
    const int64_t count = stripe.taken(shape[0] * stride);
    int64_t begin = 0;
    while (begin < count) {
      const int64_t length = 1 + up_to(random, std::min(count - begin, count / 2 + 1) - 1);
      ranges.push_back({{begin, length, stripe}, 0, std::ssize(ranges)});
      begin += length;
    }
  };
  int64_t column = 0;
  while (column < shape[1]) {
    const int64_t columns = 1 + up_to(random, shape[1] - column - 1);
    cut({column * shape[2], columns * shape[2], stride});
    column += columns;
  }
  return ranges;
}

/// What parse_index says of a tensor of bytes in these ranges.
std::string parsed(const std::vector<int64_t>& shape, const std::vector<StoredExtent>& ranges) {
  Index index{.layout = nullptr, .state = nullptr, .model = nullptr};
  index.files = {{"x", kBlockBytes, {1}}};
  auto& tensor = index.tensors["w"];
  tensor.info.dtype = DType::i8;
  tensor.info.shape = shape;
  tensor.ranges = ranges;
  int64_t at = 0;  // of a file in which they lie apart
  for (auto& range : tensor.ranges) {
    range.offset = at;
    at += range.length;
  }
  return refusal([&] { parse_index("c", format_index(index)); });
}

TEST(Tiling, OfAnyCutOverRanksIsReadAndOfNoneWithAFlaw) {
  std::mt19937_64 random(2);
  int num_striped = 0;
  for (int i = 0; i < 2000; ++i) {
    const std::vector<int64_t> shape{1 + up_to(random, 4), 1 + up_to(random, 5),
                                     1 + up_to(random, 3)};
    // They enter as a shard writes them: those without a gap as plain ranges.
    std::vector<TensorExtent> extents;
    for (const auto& range : cut_as_ranks_do(random, shape)) {
      extents.push_back({range, "w", {DType::i8, shape}});
    }
    std::ranges::shuffle(extents, random);
    Index index;
    ShardLayout(std::move(extents)).add_to(index, 0);
    check_complete("c", index);
    const auto& ranges = index.tensors["w"].ranges;
    ASSERT_EQ(parsed(shape, ranges), "(accepted)");
    num_striped += std::ranges::any_of(
        ranges, [](const StoredExtent& range) { return !range.stripe.whole(); });

    const auto which = up_to(random, std::ssize(ranges) - 1);
    auto removed = ranges, doubled = ranges, moved = ranges, shorter = ranges;
    removed.erase(removed.begin() + which);
    EXPECT_THAT(parsed(shape, removed), ::testing::HasSubstr("once, got no element "));
    doubled.insert(doubled.begin() + which, ranges[static_cast<size_t>(which)]);
    EXPECT_THAT(parsed(shape, doubled), ::testing::HasSubstr(" twice"));
    ++moved[static_cast<size_t>(which)].begin;
    EXPECT_NE(parsed(shape, moved), "(accepted)");
    --shorter[static_cast<size_t>(which)].length;
    EXPECT_NE(parsed(shape, shorter), "(accepted)");
    if (ranges.size() < 2) continue;
    auto late = ranges;
    std::rotate(late.begin(), late.begin() + 1, late.end());
    EXPECT_THAT(parsed(shape, late), ::testing::HasSubstr("in the order of their first elements"));
  }
  EXPECT_GT(num_striped, 500);
}

}  // namespace
}  // namespace tessera::checkpoint
