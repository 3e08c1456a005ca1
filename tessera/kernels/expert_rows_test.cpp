#include "tessera/kernels/expert_rows.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

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

class ExpertRowsTest : public ::testing::TestWithParam<at::ScalarType> {};

TEST_P(ExpertRowsTest, GoAndComeBackWithTheirWeights) {
  const auto order = order_by_expert(experts(), kExperts);
  const double tolerance = GetParam() == at::kFloat ? 1e-5 : 4e-2;
  const auto x = at::randn({kTokens, kDim}).to(GetParam()).requires_grad_();
  const auto weights = at::rand({kTokens, kSlots}).requires_grad_();
  const auto through = [&](bool plain) {
    if (!plain) return combine_rows(gather_rows(x, order).square(), weights, order);
    const auto rows = x.repeat_interleave(kSlots, 0).square().view({kTokens, kSlots, kDim});
    return rows.mul(weights.unsqueeze(2)).sum(1).to(GetParam());
  };
  const auto got = through(false), want = through(true);
  EXPECT_TRUE(at::allclose(got, want, tolerance, tolerance));
  const auto loss = [](const at::Tensor& y) { return y.to(at::kFloat).sin().sum(); };
  const auto of_got = torch::autograd::grad({loss(got)}, {x, weights});
  const auto of_want = torch::autograd::grad({loss(want)}, {x, weights});
  EXPECT_TRUE(at::allclose(of_got[0], of_want[0], tolerance, tolerance));
  EXPECT_TRUE(at::allclose(of_got[1], of_want[1], tolerance, 10 * tolerance));
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
INSTANTIATE_TEST_SUITE_P(Types, ExpertRowsTest,
                         ::testing::Values(at::kFloat, at::kBFloat16, at::kHalf));

}  // namespace
}  // namespace tessera::kernels
