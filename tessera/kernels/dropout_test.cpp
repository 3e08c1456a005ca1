#include "tessera/kernels/dropout.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tessera/kernels/reference.h"

namespace tessera::kernels {
namespace {

constexpr double kProbability = 0.25;
constexpr DropoutKey kKey{.seed = 7, .step = 3, .layer = 11};

at::Tensor kept(const at::Tensor& x, const DropoutKey& key) {
  return dropout(x, kProbability, key).ne(0);
}

TEST(Dropout, DropsItsShareAndScalesTheRest) {
  const auto x = at::ones({1000, 1003});
  const auto y = dropout(x, kProbability, kKey);
  EXPECT_TRUE(at::logical_or(y.eq(0), y.eq(1 / (1 - kProbability))).all().item<bool>());
  // Standard deviations: 0.00043 of the share, sqrt(p (1 - p) / n) of that of a row or column.
  EXPECT_NEAR(y.eq(0).to(at::kDouble).mean().item<double>(), kProbability, 0.002);
  for (const int64_t dim : {0, 1}) {
    const auto shares = y.eq(0).to(at::kDouble).mean(dim);
    EXPECT_NEAR(shares.std().item<double>(), 0.0137, 0.0015) << "along " << dim;
  }
}

TEST(Dropout, DependsOnEveryPartOfTheKey) {
  const auto x = at::ones({64, 64});
  const auto mask = kept(x, kKey);
  EXPECT_TRUE(mask.equal(kept(x, kKey)));
  for (const DropoutKey other :
       {DropoutKey{.seed = 8, .step = 3, .layer = 11},
        DropoutKey{.seed = 7, .step = 4, .layer = 11},
        DropoutKey{.seed = 7, .step = 3, .layer = 12},
        DropoutKey{.seed = 7, .step = 3, .layer = 11, .first_position = 64}}) {
    // Independent masks agree in 1 - 2 p (1 - p) of the elements.
    EXPECT_NEAR(mask.eq(kept(x, other)).to(at::kDouble).mean().item<double>(), 0.625, 0.04);
  }
}

TEST(Dropout, PartsOfABatchDropWhatTheWholeDoes) {
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const int64_t first : {int64_t{0}, (int64_t{1} << 32) - 50}) {  // positions pass 32 bits
      const auto x = at::randn({7, 5, 3}).to(dtype);
      DropoutKey key = kKey;
      key.first_position = first;
      const auto whole = dropout(x, kProbability, key);
      for (const int64_t split : {1, 4, 6}) {
        DropoutKey rest = key;
        rest.first_position += split * 15;
        EXPECT_TRUE(
            whole.slice(0, 0, split).equal(dropout(x.slice(0, 0, split), kProbability, key)));
        EXPECT_TRUE(whole.slice(0, split).equal(dropout(x.slice(0, split), kProbability, rest)));
      }
    }
  }
}

TEST(Dropout, PlainOperatorsDrawTheSameNumbers) {
  DropoutKey key = kKey;
  key.first_position = (int64_t{1} << 32) - 100;
  const auto x = at::randn({33, 19});
  const auto expected = dropout(x, kProbability, key);
  EXPECT_TRUE(expected.allclose(dropout_reference(x, kProbability, key)));
  for (const auto dtype : {at::kDouble, at::kHalf}) {  // in plain operators, and in vector code
    EXPECT_TRUE(expected.ne(0).equal(kept(x.to(dtype), key))) << dtype;
  }
}

TEST(Dropout, BackwardDropsTheSame) {
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble}) {
    const auto x = at::randn({9, 17}).to(dtype).requires_grad_();
    const auto y = dropout(x.t(), kProbability, kKey);  // not contiguous
    const auto gradient = at::randn({17, 9}).to(dtype);
    y.backward(gradient);
    EXPECT_TRUE(x.grad().equal(dropout(gradient, kProbability, kKey).t())) << dtype;
    EXPECT_TRUE(x.grad().t().ne(0).equal(y.ne(0))) << dtype;
  }
}

TEST(Dropout, NothingIsDroppedAtZeroAndOneIsRefused) {
  const auto x = at::randn({4, 4});
  EXPECT_TRUE(dropout(x, 0, kKey).is_same(x));
  EXPECT_THROW(dropout(x, 1, kKey), c10::ValueError);
  EXPECT_THROW(dropout(x, -0.1, kKey), c10::ValueError);
  EXPECT_EQ(dropout(at::empty({0, 4}), kProbability, kKey).numel(), 0);
}

}  // namespace
}  // namespace tessera::kernels
