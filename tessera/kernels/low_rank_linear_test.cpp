#include "tessera/kernels/low_rank_linear.h"

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <vector>

#include "tessera/autograd/deferred_gradients.h"

namespace tessera::kernels {
namespace {

using Tensors = std::vector<at::Tensor>;

constexpr double kAdapterScale = 1.5;

FrozenMatrix frozen_dense(const at::Tensor& weight) {
  const auto product = [](const at::Tensor& rows, const at::Tensor& right, const Factors& more) {
    const auto y = rows.matmul(right.to(rows.dtype()));
    return more.a.defined() ? y + more.a.matmul(more.b) : y;
  };
  return {
      .forward = [=](const auto& rows,
                     const auto& more) { return product(rows, weight.t(), more); },
      .backward = [=](const auto& rows, const auto& more) { return product(rows, weight, more); },
      .squared_row_norms = [=] { return weight.to(at::kFloat).square().sum(1); }};
}

/// Input, dropped input, A, B, bias.
Tensors adapter_operands(at::ScalarType dtype) {
  at::manual_seed(3);
  Tensors t{at::randn({2, 5, 24}), at::randn({2, 5, 24}), at::randn({4, 24}), at::randn({16, 4}),
            at::randn({16})};
  for (auto& x : t) x = x.to(dtype);
  t[2] = t[2].to(at::kFloat), t[3] = t[3].to(at::kFloat);  // adapters are trained in float32
  return t;
}

at::Tensor composed(const Tensors& t, const at::Tensor& weight, bool dropped, bool bias) {
  const auto type = t[0].scalar_type();
  const auto& read = t[dropped ? 1 : 0];
  const auto inner = at::linear(read, t[2].to(type)) * kAdapterScale;
  auto y = at::linear(t[0], weight) + at::linear(inner, t[3].to(type));
  return bias ? y + t[4] : y;
}

double error_of(const at::Tensor& got, const at::Tensor& want) {
  return ((got - want).to(at::kDouble).norm() / want.to(at::kDouble).norm()).item<double>();
}

struct AdapterVariant {
  at::ScalarType dtype;
  bool dropped, bias, sinks;
};

class LowRankLinearTest : public ::testing::TestWithParam<AdapterVariant> {};

TEST_P(LowRankLinearTest, EqualsItsParts) {
  const auto [dtype, dropped, bias, sinks] = GetParam();
  const auto weight = at::randn({16, 24}).to(dtype);
  const auto run = [&](bool ours) {
    auto t = adapter_operands(dtype);
    for (auto& x : t) x.requires_grad_();
    if (ours && sinks) {
      for (const size_t i : {2, 3}) t[i].mutable_grad() = at::zeros(t[i].sizes());
    }
    Tensors results;
    for (int micro_batch = 0; micro_batch < 2; ++micro_batch) {
      const auto y =
          ours ? low_rank_linear(t[0], frozen_dense(weight), {t[2], t[3], kAdapterScale},
                                 bias ? t[4] : at::Tensor(), {}, dropped ? t[1] : at::Tensor())
               : composed(t, weight, dropped, bias);
      (y.to(at::kFloat).square() * (micro_batch + 1)).sum().backward();
      if (micro_batch == 0) results.push_back(y.detach());
    }
    for (size_t i = 0; i < t.size(); ++i) {
      if (t[i].grad().defined()) results.push_back(t[i].grad());
    }
    return results;
  };
  const auto want = run(false), got = run(true);
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i].dtype(), want[i].dtype()) << i;
    EXPECT_LE(error_of(got[i], want[i]), dtype == at::kFloat ? 2e-6 : 2e-2) << i;
  }
}

std::vector<AdapterVariant> adapter_variants() {
  std::vector<AdapterVariant> all;
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    for (const bool dropped : {false, true}) {
      for (const bool bias : {false, true}) {
        for (const bool sinks : {false, true}) all.push_back({dtype, dropped, bias, sinks});
      }
    }
  }
  return all;
}
INSTANTIATE_TEST_SUITE_P(Variants, LowRankLinearTest, ::testing::ValuesIn(adapter_variants()));

TEST(LowRankLinear, ProductsTakeTheDtypeOfAutocast) {
  const auto weight = at::randn({16, 24});
  auto t = adapter_operands(at::kFloat);
  for (auto& x : t) x.requires_grad_();
  at::autocast::set_autocast_enabled(at::kCPU, true);
  const auto y = low_rank_linear(t[0], frozen_dense(weight), {t[2], t[3], kAdapterScale});
  at::autocast::set_autocast_enabled(at::kCPU, false);
  at::autocast::clear_cache();
  EXPECT_EQ(y.scalar_type(), at::kBFloat16);
  y.sum().backward();
  EXPECT_EQ(t[2].grad().scalar_type(), at::kFloat);
  EXPECT_LE(error_of(y, composed(t, weight, false, false)), 2e-2);
}

// Where the input needs no gradient, as in a first layer behind a frozen embedding, none is computed.
TEST(LowRankLinear, ComputesNoGradientThatNobodyNeeds) {
  auto t = adapter_operands(at::kFloat);
  auto base = frozen_dense(at::randn({16, 24}));
  int backwards = 0;
  base.backward = [&](const at::Tensor& rows, const Factors& /*more*/) {
    return ++backwards, at::zeros({rows.size(0), 24});
  };
  t[3].requires_grad_();
  low_rank_linear(t[0], base, {t[2], t[3], kAdapterScale}).sum().backward();
  EXPECT_EQ(backwards, 0);
  EXPECT_FALSE(t[2].grad().defined());
  EXPECT_TRUE(t[3].grad().defined());
}

// An expert's that no token chose: products in 8 bits would divide by the number of rows.
TEST(LowRankLinear, OfNoRowsNothingIsAskedOfTheMatrix) {
  auto t = adapter_operands(at::kFloat);
  FrozenMatrix base;
  base.forward = base.backward = [](const at::Tensor&, const Factors&) -> at::Tensor {
    throw std::logic_error("was asked");
  };
  const auto x = at::zeros({0, 24}).requires_grad_();
  t[2].requires_grad_(), t[3].requires_grad_();
  const auto y = low_rank_linear(x, base, {t[2], t[3], kAdapterScale}, t[4]);
  EXPECT_EQ(y.sizes(), (std::vector<int64_t>{0, 16}));
  y.sum().backward();
  EXPECT_EQ(x.grad().sizes(), x.sizes());
  for (const auto& matrix : {t[2], t[3]}) EXPECT_EQ(matrix.grad().abs().sum().item<float>(), 0);
}

TEST(LowRankLinear, GradientsWaitInADeferScope) {
  auto t = adapter_operands(at::kFloat);
  t[2].requires_grad_(), t[3].requires_grad_();
  for (const size_t i : {2, 3}) t[i].mutable_grad() = at::zeros(t[i].sizes());
  const auto deferred = std::make_shared<autograd::DeferredGradients>();
  at::Tensor y;
  {
    const autograd::DeferScope scope(deferred);
    y = low_rank_linear(t[0], frozen_dense(at::randn({16, 24})), {t[2], t[3], kAdapterScale});
  }
  y.sum().backward();
  EXPECT_EQ(t[2].grad().abs().sum().item<double>(), 0);
  deferred->run();
  EXPECT_GT(t[2].grad().abs().sum().item<double>(), 0);
  EXPECT_GT(t[3].grad().abs().sum().item<double>(), 0);
}

// Two ranks' halves of the input: summands of one product.
TEST(LowRankLinear, HalvesOfTheInputAreSummands) {
  auto t = adapter_operands(at::kFloat);
  const auto weight = at::randn({16, 24});
  const auto expected = composed(t, weight, false, true);
  at::Tensor first;
  const auto half = [&](int64_t begin, const std::function<at::Tensor(const at::Tensor&)>& sum) {
    const auto over_ranks = std::make_shared<ProductOverRanks>();
    over_ranks->sum = sum;
    return low_rank_linear(t[0].narrow(2, begin, 12), frozen_dense(weight.narrow(1, begin, 12)),
                           {t[2].narrow(1, begin, 12).contiguous(), t[3], kAdapterScale}, t[4],
                           over_ranks);
  };
  half(0, [&](const at::Tensor& y) { return first = y.clone(), y; });
  const auto sum = half(12, [&](const at::Tensor& y) { return y + first; });
  EXPECT_LE(error_of(sum, expected), 1e-6);
}

TEST(AdaptedRowNorms, AreThoseOfTheSum) {
  const auto t = adapter_operands(at::kFloat);
  const auto weight = at::randn({16, 24});
  const auto want = (weight + kAdapterScale * t[3].matmul(t[2])).norm(2, 1);
  EXPECT_LE(
      error_of(adapted_row_norms(frozen_dense(weight), {t[2], t[3], kAdapterScale}, at::kFloat),
               want),
      1e-6);
}

}  // namespace
}  // namespace tessera::kernels
