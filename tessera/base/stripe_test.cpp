// What a stripe takes of a tensor, against the tensor's elements one by one.
#include "tessera/base/stripe.h"

#include <gtest/gtest.h>

#include <tuple>
#include <vector>

namespace tessera {
namespace {

/// Positions in a tensor of `count` elements, by the definition alone.
std::vector<int64_t> positions(const Stripe& stripe, int64_t count) {
  std::vector<int64_t> taken;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t column = stripe.stride == 0 ? 0 : i % stripe.stride;
    if (stripe.stride == 0 || (column >= stripe.offset && column < stripe.offset + stripe.run)) {
      taken.push_back(i);
    }
  }
  return taken;
}

TEST(Stripe, TakesElementsOfEachStride) {
  constexpr int64_t kCount = 24;
  for (const int64_t stride : {0, 1, 2, 3, 4, 6, 8, 12, 24}) {
    for (int64_t offset = 0; offset <= stride; ++offset) {
      for (int64_t run = stride == 0 ? 0 : 1; run <= stride - offset; ++run) {
        const Stripe stripe{offset, run, stride};
        const auto expected = positions(stripe, kCount);
        ASSERT_TRUE(stripe.fits(kCount));
        ASSERT_EQ(stripe.taken(kCount), std::ssize(expected));
        for (int64_t k = 0; k < std::ssize(expected); ++k) {
          ASSERT_EQ(stripe.position(k), expected[static_cast<size_t>(k)]);
        }
        for (int64_t position = 0, before = 0; position <= kCount; ++position) {
          ASSERT_EQ(stripe.taken_before(position), before) << offset << " " << run << " " << stride;
          before += std::ranges::count(expected, position);
        }
      }
    }
  }
}

using Visits = std::vector<std::tuple<int64_t, int64_t, int64_t>>;  // position, k, n

Visits visits(const Stripe& stripe, int64_t begin, int64_t length) {
  Visits list;
  stripe.for_each_stretch(begin, length, [&](int64_t position, int64_t k, int64_t n) {
    list.emplace_back(position, k, n);
  });
  return list;
}

TEST(Stripe, VisitsStretchesFromAnyElementToAnyOther) {
  const Stripe columns{2, 3, 7};  // 2 3 4, 9 10 11, 16 17 18, ..
  EXPECT_EQ(visits(columns, 0, 9), (Visits{{2, 0, 3}, {9, 3, 3}, {16, 6, 3}}));
  EXPECT_EQ(visits(columns, 1, 6), (Visits{{3, 1, 2}, {9, 3, 3}, {16, 6, 1}}));
  EXPECT_EQ(visits(columns, 4, 1), (Visits{{10, 4, 1}}));
  EXPECT_EQ(visits(columns, 4, 0), Visits{});
  EXPECT_EQ(visits({0, 1, 2}, 5, 2), (Visits{{10, 5, 1}, {12, 6, 1}}));
}

TEST(Stripe, OfTheWholeIsOneStretch) {
  EXPECT_EQ(visits({}, 3, 40), (Visits{{3, 3, 40}}));
  EXPECT_EQ(visits({0, 7, 7}, 3, 40), (Visits{{3, 3, 40}}));
  EXPECT_EQ(visits({14, 7, 35}, 0, 7), (Visits{{14, 0, 7}}));  // rows 2 of 5
  EXPECT_TRUE(Stripe{}.whole());
  EXPECT_TRUE((Stripe{0, 7, 7}).whole());
  EXPECT_FALSE((Stripe{0, 6, 7}).whole());
}

TEST(Stripe, InBlocksIsOneWhereNoBlockIsCut) {
  EXPECT_EQ(Stripe{}.of_blocks(4, 30), Stripe{});
  EXPECT_EQ((Stripe{8, 4, 16}).of_blocks(4, 48), (Stripe{2, 1, 4}));    // columns
  EXPECT_EQ((Stripe{12, 12, 30}).of_blocks(4, 30), (Stripe{3, 3, 8}));  // rows of a tensor
  EXPECT_EQ((Stripe{24, 6, 30}).of_blocks(4, 30), (Stripe{6, 2, 8}));   // its last ones
  EXPECT_EQ((Stripe{2, 4, 16}).of_blocks(4, 48), std::nullopt);
  EXPECT_EQ((Stripe{8, 2, 16}).of_blocks(4, 48), std::nullopt);
  EXPECT_EQ((Stripe{0, 4, 10}).of_blocks(4, 30), std::nullopt);
  EXPECT_EQ((Stripe{12, 6, 30}).of_blocks(4, 30), std::nullopt);
}

TEST(Stripe, MayTakeNothing) {
  const Stripe none{4, 0, 4};  // of four columns those from the fifth on
  EXPECT_TRUE(none.fits(12));
  EXPECT_EQ(none.taken(12), 0);
  EXPECT_EQ(none.taken_before(12), 0);
  EXPECT_EQ(visits(none, 0, 0), Visits{});
  EXPECT_EQ((Stripe{1, 2, 4}).taken(0), 0);
}

TEST(Stripe, FitsATensorOfWholeStrides) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  EXPECT_TRUE((Stripe{1, 2, 3}).fits(0));
  EXPECT_TRUE((Stripe{0, kMost, kMost}).fits(kMost));
  for (const Stripe& stripe : {Stripe{1, 2, 4},
                               {2, 2, 3},
                               {0, 4, 3},
                               {-1, 2, 3},
                               {0, -1, 3},
                               {1, 0, 0},
                               {kMost, kMost, kMost},
                               {kMost, 2, 3},
                               {0, 0, -3}}) {
    EXPECT_FALSE(stripe.fits(9)) << stripe.offset << " " << stripe.run << " " << stripe.stride;
  }
}

}  // namespace
}  // namespace tessera
