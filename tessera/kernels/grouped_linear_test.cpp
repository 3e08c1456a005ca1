#include "tessera/kernels/grouped_linear.h"

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "tessera/autograd/deferred_gradients.h"
#include "tessera/autograd/gradient_sink.h"
#include "tessera/kernels/activation.h"
#include "tessera/kernels/adjacent.h"

namespace tessera::kernels {
namespace {

/// Groups of many rows, of one and of none.
const std::vector<int64_t> kCounts{5, 0, 40, 1, 0};

struct Operands {
  at::Tensor x, counts;
  std::vector<at::Tensor> weights, biases;

  explicit Operands(at::ScalarType type) {
    at::manual_seed(3);
    counts = at::tensor(kCounts, at::kLong);
    x = at::randn({counts.sum().item<int64_t>(), 24}).to(type).requires_grad_();
    for (size_t e = 0; e < kCounts.size(); ++e) {
      weights.push_back(at::randn({17, 24}).to(type).requires_grad_());
      biases.push_back(at::randn({17}).to(type).requires_grad_());
    }
  }

  std::vector<at::Tensor> leaves() const {
    std::vector<at::Tensor> all{x};
    all.insert(all.end(), weights.begin(), weights.end());
    return all;
  }
};

at::Tensor loss_of(const at::Tensor& y) { return y.to(at::kFloat).cos().sum(); }

double error(const at::Tensor& got, const at::Tensor& want) {
  const auto w = want.to(at::kDouble);
  return ((got.to(at::kDouble) - w).norm() / w.norm().clamp_min(1e-30)).item<double>();
}

class GroupedLinearTest : public ::testing::TestWithParam<at::ScalarType> {
 protected:
  double tolerance() const { return GetParam() == at::kFloat ? 1e-6 : 2e-2; }
};

TEST_P(GroupedLinearTest, IsAProductForEachGroup) {
  const Operands at(GetParam());
  const auto got = grouped_linear(at.x, at.weights, at.counts);
  const auto want = grouped_linear_reference(at.x, at.weights, at.counts);
  EXPECT_EQ(got.scalar_type(), GetParam());
  EXPECT_LT(error(got, want), tolerance());
  const auto of_got = torch::autograd::grad({loss_of(got)}, at.leaves());
  const auto of_want = torch::autograd::grad({loss_of(want)}, at.leaves());
  for (size_t i = 0; i < of_got.size(); ++i) {
    ASSERT_TRUE(of_got[i].defined()) << i;  // without rows, too
    EXPECT_LT(error(of_got[i], of_want[i]), tolerance()) << i;
  }
}

TEST_P(GroupedLinearTest, AddsAShareOfEachGroupsBias) {
  const Operands at(GetParam());
  auto leaves = at.leaves();
  leaves.insert(leaves.end(), at.biases.begin(), at.biases.end());
  for (const double share : {1.0, 0.25}) {
    const auto got = grouped_linear(at.x, at.weights, at.counts, at.biases, share);
    const auto want = grouped_linear_reference(at.x, at.weights, at.counts, at.biases, share);
    EXPECT_LT(error(got, want), tolerance());
    const auto of_got = torch::autograd::grad({loss_of(got)}, leaves);
    const auto of_want = torch::autograd::grad({loss_of(want)}, leaves);
    for (size_t i = 0; i < of_got.size(); ++i) {
      EXPECT_LT(error(of_got[i], of_want[i]), 1.5 * tolerance()) << i;
    }
  }
  // Frozen weights leave biases their gradients.
  for (const auto& weight : at.weights) weight.requires_grad_(false);
  loss_of(grouped_linear(at.x, at.weights, at.counts, at.biases)).backward();
  EXPECT_GT(at.biases[2].grad().abs().max().item<float>(), 0);
  EXPECT_EQ(at.biases[1].grad().abs().max().item<float>(), 0) << "a group without rows took part";
}

// Kept gradients are float32 where parameters have 16 bits, as those of flat buffers.
TEST_P(GroupedLinearTest, AddsToKeptGradients) {
  const Operands at(GetParam());
  const auto want = torch::autograd::grad(
      {loss_of(grouped_linear_reference(at.x, at.weights, at.counts))}, at.weights);
  for (const auto& weight : at.weights)
    weight.mutable_grad() = at::ones(weight.sizes(), at::kFloat);
  std::vector<int64_t> versions;
  for (const auto& weight : at.weights) versions.push_back(weight.grad()._version());
  loss_of(grouped_linear(at.x, at.weights, at.counts)).backward();
  for (size_t e = 0; e < kCounts.size(); ++e) {
    const auto& grad = at.weights[e].grad();
    EXPECT_EQ(grad.scalar_type(), at::kFloat);
    EXPECT_LT(error(grad, want[e].to(at::kFloat) + 1), tolerance()) << e;
    EXPECT_GT(grad._version(), versions[e]) << "a group without rows took part";
  }
}

/// Gates and ups of one expert after the other, in one buffer, as a flat buffer has them; kept gradients as well.
std::vector<GroupedMatrices> gates_and_ups(at::ScalarType type, bool kept, bool with_biases) {
  const auto groups = static_cast<int64_t>(kCounts.size());
  at::manual_seed(9);
  const auto all = at::randn({groups, 2, 17, 24}).div_(8).to(type), sums = at::zeros(all.sizes());
  std::vector<GroupedMatrices> members(2);
  for (int64_t e = 0; e < groups; ++e) {
    for (int64_t m = 0; m < 2; ++m) {
      const auto lying_in = [&](const at::Tensor& buffer) {  // with a version of its own
        auto matrix = at::empty({0}, buffer.options());
        return matrix.set_(buffer.storage(), (2 * e + m) * 17 * 24, {17, 24}, {24, 1});
      };
      auto& member = members[static_cast<size_t>(m)];
      member.weights.push_back(lying_in(all).requires_grad_());
      if (kept) member.weights.back().mutable_grad() = lying_in(sums);
      if (with_biases) member.biases.push_back(at::randn({17}).to(type).requires_grad_());
    }
  }
  return members;
}

TEST_P(GroupedLinearTest, MembersAreOneProductWhereTheyLieTogether) {
  const Operands at(GetParam());
  for (const bool with_biases : {false, true}) {
    const auto members = gates_and_ups(GetParam(), /*kept=*/true, with_biases);
    const auto both = grouped_linears(at.x, members, at.counts);
    EXPECT_TRUE(side_by_side({both[0].detach(), both[1].detach()}).defined());
    std::vector<at::Tensor> want;
    for (const auto& member : members) {
      want.push_back(grouped_linear_reference(at.x, member.weights, at.counts, member.biases));
    }
    for (size_t m = 0; m < 2; ++m) EXPECT_LT(error(both[m], want[m]), tolerance()) << m;
    auto leaves = at.leaves();
    leaves.resize(1);
    for (const auto& member : members) {
      leaves.insert(leaves.end(), member.weights.begin(), member.weights.end());
      leaves.insert(leaves.end(), member.biases.begin(), member.biases.end());
    }
    at.x.mutable_grad() = at::Tensor();
    const auto loss = [](const auto& y) { return loss_of(swiglu(y[0], y[1])); };
    loss(both).backward();
    const auto gradients = torch::autograd::grad({loss(want)}, leaves);
    for (size_t i = 0; i < leaves.size(); ++i) {
      EXPECT_LT(error(leaves[i].grad(), gradients[i]), 2 * tolerance()) << i;
    }
  }
  // Without kept gradients, and of members that lie apart, each is a product of its own.
  const auto members = gates_and_ups(GetParam(), /*kept=*/false, false);
  auto apart = members;
  for (auto& member : apart) {
    for (auto& weight : member.weights) weight = weight.detach().clone().requires_grad_();
  }
  const auto gradients = [&](const std::vector<GroupedMatrices>& of) {
    const auto y = grouped_linears(at.x, of, at.counts);
    std::vector<at::Tensor> leaves = of[0].weights;
    leaves.insert(leaves.end(), of[1].weights.begin(), of[1].weights.end());
    return torch::autograd::grad({loss_of(swiglu(y[0], y[1]))}, leaves);
  };
  const auto got = gradients(members), want = gradients(apart);
  for (size_t i = 0; i < got.size(); ++i) EXPECT_LT(error(got[i], want[i]), tolerance()) << i;
}

// Of groups without rows it is zero.
TEST_P(GroupedLinearTest, WritesGradientsThatAreUnwritten) {
  const auto gradients = [&](bool unwritten) {
    const Operands at(GetParam());
    const auto members = gates_and_ups(GetParam(), /*kept=*/true, false);
    std::vector<at::Tensor> all;
    for (const auto& member : members) {
      for (const auto& weight : member.weights) all.push_back(weight.grad());
    }
    for (const auto& gradient : all) {
      if (unwritten) autograd::set_unwritten(gradient.fill_(NAN));
    }
    for (int pass = 0; pass < 2; ++pass) {
      const auto y = grouped_linears(at.x, members, at.counts);
      loss_of(pass == 0 ? swiglu(y[0], y[1]) : y[0] * y[1].sin()).backward();
    }
    return all;
  };
  const auto got = gradients(true), want = gradients(false);
  for (size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(at::equal(got[i], want[i])) << i;
}

INSTANTIATE_TEST_SUITE_P(Types, GroupedLinearTest,
                         ::testing::Values(at::kFloat, at::kBFloat16, at::kHalf));

TEST(GroupedLinear, WeightsWaitInASplitBackward) {
  const Operands at(at::kFloat);
  for (const auto& weight : at.weights) weight.mutable_grad() = at::zeros_like(weight);
  const auto deferred = std::make_shared<autograd::DeferredGradients>();
  at::Tensor y;
  {
    const autograd::DeferScope scope(deferred);
    y = grouped_linear(at.x, at.weights, at.counts);
  }
  loss_of(y).backward();
  EXPECT_EQ(at.weights[2].grad().abs().max().item<float>(), 0);
  EXPECT_GT(at.x.grad().abs().max().item<float>(), 0);
  deferred->run();
  const auto want = torch::autograd::grad(
      {loss_of(grouped_linear_reference(at.x, at.weights, at.counts))}, at.weights);
  EXPECT_LT(error(at.weights[2].grad(), want[2]), 1e-6);
}

TEST(GroupedLinear, FrozenWeightsHaveNone) {
  const Operands at(at::kFloat);
  for (const auto& weight : at.weights) weight.requires_grad_(false);
  loss_of(grouped_linear(at.x, at.weights, at.counts)).backward();
  EXPECT_TRUE(at.x.grad().defined());
  EXPECT_FALSE(at.weights[0].grad().defined());
}

TEST(GroupedLinear, TakesNoRowsAtAll) {
  const Operands at(at::kFloat);
  const auto none = at::zeros_like(at.counts);
  const auto x = at::empty({0, 24}).requires_grad_();
  const auto y = grouped_linear(x, at.weights, none);
  EXPECT_EQ(y.sizes(), (std::vector<int64_t>{0, 17}));
  y.sum().backward();
  EXPECT_EQ(at.weights[1].grad().abs().max().item<float>(), 0);
}

TEST(GroupedLinear, TakesAutocastsType) {
  const Operands at(at::kFloat);
  at::autocast::set_autocast_enabled(at::kCPU, true);
  at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
  const auto y = grouped_linear(at.x, at.weights, at.counts);
  at::autocast::set_autocast_enabled(at::kCPU, false);
  at::autocast::clear_cache();
  EXPECT_EQ(y.scalar_type(), at::kBFloat16);
  const auto want = grouped_linear_reference(at.x, at.weights, at.counts);
  EXPECT_LT(error(y, want), 2e-2);
  loss_of(y).backward();
  EXPECT_EQ(at.weights[0].grad().scalar_type(), at::kFloat);
}

TEST(GroupedLinear, RefusesShapesThatDoNotFit) {
  const Operands at(at::kFloat);
  EXPECT_THROW(grouped_linear(at.x, {at.weights[0]}, at.counts), c10::ValueError);
  EXPECT_THROW(grouped_linear(at.x.narrow(1, 0, 8), at.weights, at.counts), c10::ValueError);
  EXPECT_THROW(grouped_linear(at.x, at.weights, at.counts, {at.biases[0]}), c10::ValueError);
}

}  // namespace
}  // namespace tessera::kernels
