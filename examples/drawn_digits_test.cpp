#include "drawn_digits.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace drawn {
namespace {

TEST(Digits, ARangeIsThatRangeOfTheSequence) {
  const auto all = draw_digits(3, 0, 40), some = draw_digits(3, 17, 25);
  EXPECT_TRUE(at::equal(some.images, all.images.slice(0, 17, 25)));
  EXPECT_TRUE(at::equal(some.labels, all.labels.slice(0, 17, 25)));
  EXPECT_EQ(draw_digits(3, 9, 9).images.sizes(), (std::vector<int64_t>{0, 1, 28, 28}));
}

TEST(Digits, SeedsAndIndicesDiffer) {
  const auto digits = draw_digits(3, 0, 200), others = draw_digits(4, 0, 200);
  const auto flat = digits.images.flatten(1);
  EXPECT_GT((at::cdist(flat, flat) + at::eye(200) * 100).min().item<double>(), 1);
  EXPECT_GT(at::cdist(flat, others.images.flatten(1)).min().item<double>(), 1);
  EXPECT_FALSE(at::equal(digits.labels, others.labels));
}

TEST(Digits, EveryDigitComesEquallyOften) {
  const auto counts = at::bincount(draw_digits(1, 0, 4000).labels, {}, 10);
  EXPECT_GT(counts.min().item<int64_t>(), 340);
  EXPECT_LT(counts.max().item<int64_t>(), 460);
}

// A nearest-mean classifier does better than guessing, and not well: the digits can be told apart,
// by more than pixels at fixed places.
TEST(Digits, LookAlikeWithinAClassButAreNotTheSame) {
  const auto train = draw_digits(1, 0, 2000), test = draw_digits(1, 2000, 3000);
  const auto means = at::zeros({10, 784}).index_add_(0, train.labels, train.images.flatten(1)) /
                     at::bincount(train.labels, {}, 10).unsqueeze(1);
  const auto nearest = at::cdist(test.images.flatten(1), means).argmin(1);
  const double accuracy = nearest.eq(test.labels).to(at::kDouble).mean().item<double>();
  EXPECT_GT(accuracy, 0.4);
  EXPECT_LT(accuracy, 0.9);
}

}  // namespace
}  // namespace drawn
