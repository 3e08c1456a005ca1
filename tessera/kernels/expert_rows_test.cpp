#include "tessera/kernels/expert_rows.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>

#include "tessera/kernels/random_bits.h"
#include "tessera/kernels/router.h"

namespace tessera::kernels {
namespace {

constexpr int64_t kTokens = 23, kSlots = 3, kExperts = 6, kDim = 10;

at::Tensor experts() {
  at::manual_seed(5);
  // Expert 4 has nobody.
  auto scores = at::rand({kTokens, kExperts});
  scores.select(1, 4).fill_(-1);
  return std::get<1>(scores.topk(kSlots, 1));
}

TEST(ExpertRows, StandInTheOrderOfExpertsAndTokens) {
  const auto chosen = experts();
  const auto order = order_by_expert(chosen, kExperts);
  const auto sorted = chosen.flatten().sort(/*stable=*/true, 0, /*descending=*/false);
  EXPECT_TRUE(order.slots.equal(std::get<1>(sorted)));
  EXPECT_TRUE(order.counts.equal(at::bincount(chosen.flatten(), {}, kExperts)));
  EXPECT_EQ(order.counts[4].item<int64_t>(), 0);
  const auto back = order.slots.index_select(0, order.places.flatten());
  EXPECT_TRUE(back.equal(at::arange(kTokens * kSlots)));
}

// Places of the choices that stay are those of a sort without the others.
TEST(ExpertRows, ThoseDroppedHaveNoPlace) {
  auto chosen = experts();
  chosen.masked_fill_(at::rand(chosen.sizes()).lt(0.4), -1);
  const auto order = order_by_expert(chosen, kExperts, /*some_dropped=*/true);
  const auto kept = chosen.ge(0).flatten();
  const auto num_kept = kept.sum().item<int64_t>();
  const auto sorted = std::get<1>(chosen.flatten().sort(/*stable=*/true, 0, /*descending=*/false));
  EXPECT_TRUE(order.slots.equal(sorted.slice(0, chosen.numel() - num_kept)));
  EXPECT_TRUE(order.counts.equal(at::bincount(chosen.flatten().masked_select(kept), {}, kExperts)));
  EXPECT_TRUE(order.places.flatten().eq(num_kept).equal(kept.logical_not()));
  EXPECT_TRUE(order.slots.index_select(0, order.places.flatten().masked_select(kept))
                  .equal(at::arange(chosen.numel()).masked_select(kept)));
}

class ExpertRowsTest : public ::testing::TestWithParam<at::ScalarType> {
 protected:
  double tolerance() const { return GetParam() == at::kFloat ? 1e-5 : 4e-2; }

  /// Results, and gradients of rows and weights, are alike.
  void expect_alike(const at::Tensor& got, const at::Tensor& want, const at::Tensor& x,
                    const at::Tensor& weights) const {
    EXPECT_TRUE(at::allclose(got, want, tolerance(), tolerance()));
    const auto loss = [](const at::Tensor& y) { return y.to(at::kFloat).sin().sum(); };
    const auto of_got = torch::autograd::grad({loss(got)}, {x, weights});
    const auto of_want = torch::autograd::grad({loss(want)}, {x, weights});
    EXPECT_TRUE(at::allclose(of_got[0], of_want[0], tolerance(), tolerance()));
    EXPECT_TRUE(at::allclose(of_got[1], of_want[1], tolerance(), 10 * tolerance()));
  }
};

TEST_P(ExpertRowsTest, GoAndComeBackWithTheirWeights) {
  const auto order = order_by_expert(experts(), kExperts);
  const auto x = at::randn({kTokens, kDim}).to(GetParam()).requires_grad_();
  const auto weights = at::rand({kTokens, kSlots}).requires_grad_();
  const auto through = [&](bool plain) {
    if (!plain) return combine_rows(gather_rows(x, order).square(), weights, order);
    const auto rows = x.repeat_interleave(kSlots, 0).square().view({kTokens, kSlots, kDim});
    return rows.mul(weights.unsqueeze(2)).sum(1).to(GetParam());
  };
  const auto got = through(false), want = through(true);
  expect_alike(got, want, x, weights);
}

TEST_P(ExpertRowsTest, DroppedOnesAddNothing) {
  for (const double share : {0.4, 1.0}) {
    auto chosen = experts();
    const auto dropped = at::rand(chosen.sizes()).lt(share);
    chosen.masked_fill_(dropped, -1);
    const auto order = order_by_expert(chosen, kExperts, /*some_dropped=*/true);
    const auto x = at::randn({kTokens, kDim}).to(GetParam()).requires_grad_();
    const auto weights = at::rand({kTokens, kSlots}).requires_grad_();
    const auto got = combine_rows(gather_rows(x, order).square(), weights, order);
    const auto rows = x.repeat_interleave(kSlots, 0).square().view({kTokens, kSlots, kDim});
    const auto want =
        rows.mul((weights * dropped.logical_not()).unsqueeze(2)).sum(1).to(GetParam());
    expect_alike(got, want, x, weights);
  }
}

// A product of 16-bit rows is that of the same numbers in float32.
TEST_P(ExpertRowsTest, LogitsOfARouterAreFloat) {
  const auto x = at::randn({kTokens, kDim}).to(GetParam()).requires_grad_();
  const auto weight = at::randn({kExperts, kDim}).to(GetParam()).requires_grad_();
  const auto got = router_logits(x, weight);
  const auto want = x.to(at::kFloat).matmul(weight.to(at::kFloat).t());
  EXPECT_EQ(got.scalar_type(), at::kFloat);
  EXPECT_TRUE(at::allclose(got, want, 1e-5, 1e-5));
  weight.mutable_grad() = at::zeros(weight.sizes(), at::kFloat);
  got.sin().sum().backward();
  const auto of_want = torch::autograd::grad({want.sin().sum()}, {x, weight});
  const double tolerance = GetParam() == at::kFloat ? 1e-5 : 2e-2;
  EXPECT_TRUE(at::allclose(x.grad(), of_want[0], tolerance, tolerance));
  EXPECT_TRUE(at::allclose(weight.grad(), of_want[1].to(at::kFloat), tolerance, tolerance));
}
/// The factors of a jitter, as the logits of ones by the identity.
at::Tensor factors(int64_t tokens, const Jitter& jitter) {
  return router_logits(at::ones({tokens, kDim}), at::eye(kDim), {}, jitter);
}

TEST_P(ExpertRowsTest, JitterMultipliesWhatEntersARouter) {
  const Jitter jitter{.eps = 0.25, .key = {.seed = 3, .step = 2, .layer = 9}};
  const auto drawn = factors(kTokens, jitter);
  const auto x = at::randn({kTokens, kDim}).to(GetParam()).requires_grad_();
  const auto weight = at::randn({kExperts, kDim}).requires_grad_();
  const auto got = router_logits(x, weight, {}, jitter);
  const auto want = (x.to(at::kFloat) * drawn).matmul(weight.t());
  EXPECT_TRUE(at::allclose(got, want, 1e-5, 1e-5));
  const auto of_got = torch::autograd::grad({got.sin().sum()}, {x, weight});
  const auto of_want = torch::autograd::grad({want.sin().sum()}, {x, weight});
  const double tolerance = GetParam() == at::kFloat ? 1e-5 : 2e-2;
  EXPECT_TRUE(at::allclose(of_got[0], of_want[0], tolerance, tolerance));
  EXPECT_TRUE(at::allclose(of_got[1], of_want[1], 1e-4, 1e-4));
}

TEST(RouterJitter, IsUniformAndOfItsPosition) {
  const Jitter jitter{.eps = 0.25, .key = {.seed = 3, .step = 2, .layer = 9}};
  const auto drawn = factors(20000, jitter);
  EXPECT_GE(drawn.min().item<float>(), 0.75f);
  EXPECT_LE(drawn.max().item<float>(), 1.25f);
  EXPECT_NEAR(drawn.mean().item<float>(), 1, 0.002);
  EXPECT_NEAR(drawn.std().item<float>(), 0.25 / std::sqrt(3.0), 0.002);
  auto later = jitter;
  later.key.first_position = 7 * kDim;
  EXPECT_TRUE(drawn.slice(0, 7, 27).equal(factors(20, later)));
  later.key.first_position = 0, later.key.step = 3;
  EXPECT_FALSE(factors(20, jitter).equal(factors(20, later)));
  // What `drop` draws at the same positions, whatever computes it.
  const auto bits = random_bits(at::arange(20 * kDim), jitter.key).view({20, kDim});
  const auto plain = 1 + (bits - (int64_t{1} << 31)).to(at::kFloat) * (0.25 / 0x1p31);
  EXPECT_TRUE(at::allclose(factors(20, jitter), plain, 1e-6, 1e-6));
  EXPECT_THROW(factors(2, {.eps = 1, .key = {}}), c10::ValueError);
}

INSTANTIATE_TEST_SUITE_P(Types, ExpertRowsTest,
                         ::testing::Values(at::kFloat, at::kBFloat16, at::kHalf));

}  // namespace
}  // namespace tessera::kernels
