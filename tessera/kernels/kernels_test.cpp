// Each fused operator against its plain version: values, gradients, both dtypes, every instruction
// set, any threads.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/kernels/activation.h"
#include "tessera/kernels/layer_norm.h"
#include "tessera/kernels/linear.h"
#include "tessera/kernels/linear_cross_entropy.h"
#include "tessera/kernels/reference.h"
#include "tessera/kernels/rms_norm.h"
#include "tessera/kernels/rotary.h"
#include "tessera/kernels/testing.h"

namespace tessera::kernels {
namespace {

using Tensors = std::vector<at::Tensor>;
using Operator = std::function<at::Tensor(const Tensors&)>;

/// Where nothing is wanted (a LayerNorm of one number has no gradient), how much there is.
double relative_error(const at::Tensor& got, const at::Tensor& want) {
  const auto g = got.to(at::kDouble);
  const auto w = want.to(at::kDouble);
  const auto distance = (g - w).norm().item<double>(), size = w.norm().item<double>();
  return size == 0 ? distance : distance / size;
}

/// The output and the gradient of sum(output * fixed noise) by every input.
Tensors run(const Operator& op, const Tensors& inputs) {
  Tensors leaves;
  for (const auto& x : inputs) leaves.push_back(x.detach().clone().requires_grad_());
  const auto y = op(leaves);
  auto generator = at::make_generator<at::CPUGeneratorImpl>(3);
  const auto noise = at::randn(y.sizes(), generator).to(y.scalar_type());
  Tensors out = {y.detach()};
  for (auto& g : torch::autograd::grad({(y * noise).sum()}, leaves)) out.push_back(g);
  return out;
}

struct Case {
  std::string name;
  Operator fused, plain;
  Tensors inputs;
};

Case rms_case(int64_t rows, int64_t dim) {
  return {fmt::format("rms_norm {}x{}", rows, dim),
          [](const Tensors& t) { return rms_norm(t[0], t[1], 1e-5); },
          [](const Tensors& t) { return rms_norm_reference(t[0], t[1], 1e-5); },
          {at::randn({rows, dim}), at::randn({dim})}};
}

Case add_rms_case(int64_t rows, int64_t dim) {
  const auto both = [](const std::tuple<at::Tensor, at::Tensor>& pair) {
    return at::cat({std::get<0>(pair), std::get<1>(pair)});
  };
  return {fmt::format("add_rms_norm {}x{}", rows, dim),
          [=](const Tensors& t) { return both(add_rms_norm(t[0], t[1], t[2], 1e-5)); },
          [=](const Tensors& t) { return both(add_rms_norm_reference(t[0], t[1], t[2], 1e-5)); },
          {at::randn({rows, dim}), at::randn({rows, dim}), at::randn({dim})}};
}

Case rms_beside_case(int64_t rows, int64_t dim) {
  return {fmt::format("rms_norm beside {}x{}", rows, dim),
          [](const Tensors& t) {
            const auto [x, y] = add_rms_norm(t[0], {}, t[1], 1e-5);
            return at::cat({x, y});
          },
          [](const Tensors& t) {
            return at::cat({t[0], rms_norm_reference(t[0], t[1], 1e-5)});
          },
          {at::randn({rows, dim}), at::randn({dim})}};
}

Case layer_norm_case(int64_t rows, int64_t dim) {
  return {fmt::format("layer_norm {}x{}", rows, dim),
          [](const Tensors& t) { return layer_norm(t[0], t[1], t[2], 1e-5); },
          [=](const Tensors& t) { return at::layer_norm(t[0], {dim}, t[1], t[2], 1e-5); },
          {at::randn({rows, dim}) + 3, at::randn({dim}), at::randn({dim})}};
}

Case swiglu_case(int64_t rows, int64_t dim) {
  return {fmt::format("swiglu {}x{}", rows, dim),
          [](const Tensors& t) { return swiglu(t[0], t[1]); },
          [](const Tensors& t) { return swiglu_reference(t[0], t[1]); },
          {at::randn({rows, dim}) * 4, at::randn({rows, dim})}};
}

Case clamped_swiglu_case(int64_t rows, int64_t dim) {
  const GateClamp clamp{.scale = 1.702F, .limit = 1.5F};  // which some of both meet
  return {fmt::format("clamped_swiglu {}x{}", rows, dim),
          [=](const Tensors& t) { return clamped_swiglu(t[0], t[1], clamp); },
          [=](const Tensors& t) { return clamped_swiglu_reference(t[0], t[1], clamp); },
          {at::randn({rows, dim}) * 4, at::randn({rows, dim}) * 2}};
}

Case gelu_case(int64_t rows, int64_t dim) {
  return {fmt::format("gelu_tanh {}x{}", rows, dim),
          [](const Tensors& t) { return gelu_tanh(t[0]); },
          [](const Tensors& t) { return gelu_tanh_reference(t[0]); },
          {at::randn({rows, dim}) * 3}};
}

Case rotary_case(int64_t batch, int64_t tokens, int64_t heads, int64_t dim) {
  const auto [cos, sin] = rotary_tables(tokens, dim);
  return {fmt::format("rotary {}x{}x{}x{}", batch, tokens, heads, dim),
          [cos = cos, sin = sin](const Tensors& t) { return rotary(t[0], cos, sin); },
          [cos = cos, sin = sin](const Tensors& t) { return rotary_reference(t[0], cos, sin); },
          {at::randn({batch, tokens, heads, dim})}};
}

Case loss_case(int64_t rows, int64_t dim, int64_t vocab, int64_t chunk_rows) {
  auto targets = at::randint(vocab, {rows}, at::kLong);
  if (rows > 2) targets[1] = -100;
  const LinearCrossEntropyOptions options{.loss = 0.25, .chunk_rows = chunk_rows};
  return {
      fmt::format("linear_cross_entropy {}x{}x{} by {}", rows, dim, vocab, chunk_rows),
      [=](const Tensors& t) { return linear_cross_entropy(t[0], t[1], targets, options); },
      [=](const Tensors& t) { return linear_cross_entropy_reference(t[0], t[1], targets, 0.25); },
      {at::randn({rows, dim}), at::randn({vocab, dim})}};
}

std::vector<Case> all_cases() {
  at::manual_seed(1);
  std::vector<Case> cases;
  for (const int64_t rows : {1, 7, 130}) {
    for (const int64_t dim : {1, 5, 64, 688}) {
      cases.push_back(rms_case(rows, dim));
      cases.push_back(add_rms_case(rows, dim));
      cases.push_back(rms_beside_case(rows, dim));
      cases.push_back(swiglu_case(rows, dim));
      cases.push_back(gelu_case(rows, dim));
    }
  }
  cases.push_back(rotary_case(2, 7, 3, 64));
  cases.push_back(rotary_case(1, 1, 1, 2));
  cases.push_back(rotary_case(3, 5, 2, 10));
  cases.push_back(loss_case(1, 5, 3, 0));
  cases.push_back(loss_case(7, 64, 1000, 3));
  cases.push_back(loss_case(65, 33, 5003, 16));
  cases.push_back(loss_case(65, 33, 1, 0));
  for (const int64_t rows : {1, 7, 130}) {
    for (const int64_t dim : {1, 5, 64, 688}) cases.push_back(layer_norm_case(rows, dim));
  }
  for (const int64_t dim : {1, 5, 688}) cases.push_back(clamped_swiglu_case(7, dim));
  return cases;
}

class EveryIsa : public ::testing::TestWithParam<Isa> {};
INSTANTIATE_TEST_SUITE_P(Sets, EveryIsa, ::testing::ValuesIn(usable_sets()),
                         [](const auto& info) { return std::string(name_of(info.param)); });

TEST_P(EveryIsa, Float32EqualsTheReference) {
  const IsaScope scope(GetParam());
  for (const Case& c : all_cases()) {
    SCOPED_TRACE(c.name);
    Tensors exact;
    for (const auto& x : c.inputs) exact.push_back(x.to(at::kDouble));
    const auto got = run(c.fused, c.inputs);
    const auto want = run(c.plain, exact);
    const auto plain = run(c.plain, c.inputs);
    for (size_t i = 0; i < got.size(); ++i) {
      EXPECT_TRUE(got[i].sizes() == want[i].sizes());
      // At D = 1 and V = 1 the true gradient is (nearly) zero: then as near as the plain version
      // gets.
      const double bound = i == 0 ? 1e-6 : 1e-5;
      EXPECT_LE(relative_error(got[i], want[i]),
                std::max(bound, 4 * relative_error(plain[i], want[i])))
          << "output " << i;
    }
  }
}

TEST_P(EveryIsa, SixteenBitsEqualTheReference) {
  const IsaScope scope(GetParam());
  for (const auto& [dtype, bound] : {std::pair(at::kBFloat16, 0.006), {at::kHalf, 0.0008}}) {
    for (const Case& c : all_cases()) {
      SCOPED_TRACE(c.name);
      Tensors rounded, exact;
      for (const auto& x : c.inputs) {
        rounded.push_back(x.to(dtype));
        exact.push_back(rounded.back().to(at::kDouble));
      }
      const auto got = run(c.fused, rounded);
      const auto want = run(c.plain, exact);
      const auto plain = run(c.plain, rounded);
      for (size_t i = 0; i < got.size(); ++i) {
        EXPECT_EQ(got[i].scalar_type(), plain[i].scalar_type());
        EXPECT_LE(relative_error(got[i], want[i]),
                  std::max(bound, 1.5 * relative_error(plain[i], want[i])))
            << dtype << ", output " << i;
      }
    }
  }
}

TEST_P(EveryIsa, SameBitsOnRepeatAndForAnyNumberOfThreads) {
  const IsaScope scope(GetParam());
  const int before = at::get_num_threads();
  for (const Case& c :
       {rms_case(3000, 65), add_rms_case(3000, 65), rms_beside_case(3000, 65),
        layer_norm_case(3000, 65), swiglu_case(3000, 65), clamped_swiglu_case(3000, 65),
        gelu_case(3000, 65), rotary_case(2, 1500, 3, 22), loss_case(130, 32, 1003, 50)}) {
    SCOPED_TRACE(c.name);
    at::set_num_threads(1);
    const auto one = run(c.fused, c.inputs);
    const auto again = run(c.fused, c.inputs);
    at::set_num_threads(2);
    const auto two = run(c.fused, c.inputs);
    at::set_num_threads(before);
    for (size_t i = 0; i < one.size(); ++i) {
      EXPECT_TRUE(at::equal(one[i], again[i])) << "output " << i;
      // The products inside the loss are MKL's, which splits sums by threads.
      if (c.name.starts_with("linear_")) {
        EXPECT_LE(relative_error(two[i], one[i]), 1e-6) << "output " << i;
      } else {
        EXPECT_TRUE(at::equal(one[i], two[i])) << "output " << i;
      }
    }
  }
}

// The operators run their plain versions in float64: finite differences check those, and the fused
// ones are compared with them above.
TEST(GradCheck, EveryOperatorInFloat64) {
  at::manual_seed(2);
  const auto weight_case = Case{"linear",
                                [](const Tensors& t) { return kernels::linear(t[0], t[1], t[2]); },
                                nullptr,
                                {at::randn({2, 3, 4}), at::randn({5, 4}), at::randn({5})}};
  for (const Case& c : {rms_case(3, 5), add_rms_case(3, 5), rms_beside_case(3, 5),
                        swiglu_case(2, 5), clamped_swiglu_case(2, 5), gelu_case(2, 5),
                        rotary_case(1, 3, 2, 4), loss_case(5, 4, 7, 2), weight_case}) {
    SCOPED_TRACE(c.name);
    Tensors inputs;
    for (const auto& x : c.inputs) inputs.push_back(x.to(at::kDouble));
    const auto analytic = run(c.fused, inputs);
    for (size_t k = 0; k < inputs.size(); ++k) {
      auto numeric = at::empty_like(inputs[k]).flatten();
      for (int64_t i = 0; i < numeric.numel(); ++i) {
        const auto value_at = [&](double offset) {
          Tensors moved = inputs;
          moved[k] = inputs[k].clone();
          moved[k].view(-1)[i] += offset;
          const auto y = c.fused(moved);
          auto generator = at::make_generator<at::CPUGeneratorImpl>(3);
          return (y * at::randn(y.sizes(), generator).to(y.scalar_type())).sum().item<double>();
        };
        numeric[i] = (value_at(1e-6) - value_at(-1e-6)) / 2e-6;
      }
      EXPECT_LE(relative_error(analytic[k + 1].flatten(), numeric), 1e-6) << "input " << k;
    }
  }
}

TEST(Strides, SlicesOfAFusedProductAreReadInPlace) {
  at::manual_seed(4);
  const auto fused = at::randn({2, 6, 40});  // [B, T, 2 heads of 16 and 8 more]
  const auto [cos, sin] = rotary_tables(6, 16);
  const auto x = fused.slice(-1, 3, 35).unflatten(-1, {2, 16});
  EXPECT_LE(relative_error(rotary(x, cos, sin), rotary_reference(x, cos, sin)), 1e-6);
  const auto odd = x.transpose(2, 3).contiguous().transpose(2, 3);  // last dimension not contiguous
  EXPECT_TRUE(at::equal(rotary(odd, cos, sin), rotary(x, cos, sin)));
  const auto gate = fused.slice(-1, 0, 20), up = fused.slice(-1, 20, 40);
  EXPECT_LE(relative_error(swiglu(gate, up), swiglu_reference(gate, up)), 1e-6);
  const auto both = at::randn({2, 6, 40}).requires_grad_();
  const auto scale = at::randn({2, 6, 20});
  const auto gradient_of = [&](auto&& gated) {
    const auto y = gated(both.slice(-1, 0, 20), both.slice(-1, 20, 40));
    return torch::autograd::grad({(y * scale).sum()}, {both})[0];
  };
  EXPECT_LE(relative_error(gradient_of(swiglu), gradient_of(swiglu_reference)), 1e-6);
  const auto crossed = fused.transpose(0, 1).slice(-1, 0, 20);  // rows at no constant stride
  EXPECT_LE(relative_error(swiglu(crossed, crossed), swiglu_reference(crossed, crossed)), 1e-6);
}

TEST(Extremes, SwigluAndLossStayFinite) {
  const auto x = at::tensor({-1e30f, -100.0f, -88.0f, 0.0f, 88.0f, 100.0f, 1e30f});
  EXPECT_TRUE(at::allclose(swiglu(x, at::ones_like(x)), at::silu(x)));
  EXPECT_TRUE(at::allclose(gelu_tanh(x), gelu_tanh_reference(x)));
  const auto nan = at::full({3}, std::nan(""), at::kFloat);
  EXPECT_TRUE(swiglu(nan, nan).isnan().all().item<bool>());
  EXPECT_TRUE(at::allclose(clamped_swiglu(x, x, {}), clamped_swiglu_reference(x, x, {})));
  EXPECT_TRUE(clamped_swiglu(nan, at::ones_like(nan), {}).isnan().all().item<bool>());
  EXPECT_TRUE(clamped_swiglu(at::ones_like(nan), nan, {}).isnan().all().item<bool>());
  const auto hidden = at::eye(2) * 1e4;
  const auto loss = linear_cross_entropy(hidden, at::eye(2) * 1e4, at::arange(2));
  EXPECT_EQ(loss.item<double>(), 0);
}

TEST(Meta, ShapesWithoutMemory) {
  const auto x = at::empty({4, 1 << 20}, at::device(at::kMeta));
  EXPECT_EQ(rms_norm(x, x[0], 1e-5).sizes(), x.sizes());
  EXPECT_EQ(swiglu(x, x).sizes(), x.sizes());
  EXPECT_EQ(kernels::linear(x, at::empty({8, 1 << 20}, x.options())).size(1), 8);
  const auto targets = at::empty({4}, x.options().dtype(at::kLong));
  EXPECT_EQ(linear_cross_entropy(x, x, targets).dim(), 0);
}

TEST(RotaryTables, Llama3ScalingLeavesFastAndStretchesSlowWavelengths) {
  const auto [plain, unused] = rotary_tables(100, 64, {.theta = 500000});
  const auto [scaled, unused2] =
      rotary_tables(100, 64, {.theta = 500000, .scaling = RopeScaling{}});
  EXPECT_TRUE(at::equal(plain.select(1, 0), scaled.select(1, 0)));
  const auto eighth = at::cos(at::acos(plain[1][31].to(at::kDouble)) / 8);
  EXPECT_NEAR(scaled[1][31].item<double>(), eighth.item<double>(), 1e-7);
  const auto [later, unused3] = rotary_tables(10, 64, {.theta = 500000, .first_position = 90});
  EXPECT_TRUE(at::equal(later, plain.slice(0, 90)));
  EXPECT_THROW(rotary_tables(1, 3), c10::ValueError);
}

TEST(LinearCrossEntropy, CapsTheLogits) {
  at::manual_seed(3);
  const auto h = at::randn({7, 5}) * 2, w = at::randn({11, 5});
  const auto targets = at::randint(11, {7}, at::kLong);
  const auto run = [&](auto&& loss_of) {
    const auto hidden = h.clone().requires_grad_(), weight = w.clone().requires_grad_();
    const at::Tensor loss = loss_of(hidden, weight);
    loss.backward();
    return Tensors{loss.detach(), hidden.grad(), weight.grad()};
  };
  const auto expected = run([&](const at::Tensor& hidden, const at::Tensor& weight) {
    const auto logits = (hidden.matmul(weight.t()) / 3).tanh() * 3;
    return at::cross_entropy_loss(logits, targets, {}, at::Reduction::Sum) * 0.5;
  });
  for (const int64_t rows : {0, 2}) {
    const auto found = run([&](const at::Tensor& hidden, const at::Tensor& weight) {
      return linear_cross_entropy(hidden, weight, targets,
                                  {.loss = 0.5, .softcap = 3, .chunk_rows = rows});
    });
    for (size_t i = 0; i < 3; ++i) EXPECT_LE(relative_error(found[i], expected[i]), 2e-6) << i;
  }
}

// The sum over groups of (their tokens' losses)^2: a token's slope depends on others' losses.
TEST(LinearCrossEntropy, AnObjectiveOfAllLosses) {
  at::manual_seed(13);
  const auto targets = at::tensor({3, 0, -100, 10, 5, 5, 2}, at::kLong);
  const auto group = at::tensor({0, 0, 0, 0, 1, 1, 1}, at::kLong);
  const auto of_groups = [&](const at::Tensor& losses) {
    return at::zeros({2}, losses.options()).index_add(0, group, losses);
  };
  const TokenLoss loss([&](const at::Tensor& losses) {
    EXPECT_EQ(losses.scalar_type(), at::kDouble);
    EXPECT_EQ(losses[2].item<double>(), 0);
    const auto sums = of_groups(losses);
    return Objective{.value = sums.square().sum().item<double>(),
                     .slopes = 2 * sums.index_select(0, group)};
  });
  for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
    const auto h = at::randn({7, 5}).to(dtype), w = at::randn({11, 5}).to(dtype);
    auto wide_hidden = h.clone().to(at::kDouble).requires_grad_(),
         wide = w.clone().to(at::kDouble).requires_grad_();
    const auto each =
        at::cross_entropy_loss(wide_hidden.matmul(wide.t()), targets, {}, at::Reduction::None);
    const auto expected = of_groups(each).square().sum();
    expected.backward();
    for (const bool flat : {false, true}) {
      const auto hidden = h.clone().requires_grad_(), weight = w.clone().requires_grad_();
      LinearCrossEntropyOptions options{.loss = loss, .chunk_rows = 3};
      if (flat) options.weight_gradient = at::zeros({11, 5});
      const auto found = linear_cross_entropy(hidden, weight, targets, options);
      found.backward();
      const double tolerance = dtype == at::kBFloat16 ? 2e-2 : 2e-6;
      EXPECT_NEAR(found.item<double>() / expected.item<double>(), 1, tolerance) << dtype;
      EXPECT_LE(relative_error(hidden.grad().to(at::kDouble), wide_hidden.grad()), tolerance);
      const auto of_weight = flat ? options.weight_gradient : weight.grad();
      EXPECT_LE(relative_error(of_weight.to(at::kDouble), wide.grad()), tolerance);
    }
    const at::NoGradGuard no_grad;
    EXPECT_NEAR(linear_cross_entropy(h, w, targets, {.loss = loss}).item<double>() /
                    expected.item<double>(),
                1, dtype == at::kBFloat16 ? 2e-2 : 2e-6);
  }
}

TEST(LinearCrossEntropy, AddsToTheCallersGradient) {
  at::manual_seed(5);
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kDouble}) {
    for (const auto sink_dtype : {at::kFloat, at::kBFloat16}) {
      const auto c = loss_case(50, 16, 300, 16);
      auto hidden = c.inputs[0].to(dtype).requires_grad_();
      auto weight = c.inputs[1].to(dtype).requires_grad_();
      const auto targets = at::randint(300, {50}, at::kLong);
      linear_cross_entropy_reference(hidden, weight, targets).backward();
      const auto want_hidden = hidden.grad().clone();
      const auto want = weight.grad() * 2 + 1;
      hidden.mutable_grad().reset();
      weight.mutable_grad().reset();
      auto sink = at::ones({300, 16}, sink_dtype);
      for (int i = 0; i < 2; ++i) {
        linear_cross_entropy(hidden, weight, targets, {.weight_gradient = sink, .chunk_rows = 16})
            .backward();
      }
      EXPECT_FALSE(weight.grad().defined());
      const bool coarse = dtype == at::kBFloat16 || sink_dtype == at::kBFloat16;
      EXPECT_LE(relative_error(sink, want), coarse ? 0.01 : 1e-5);
      EXPECT_LE(relative_error(hidden.grad(), want_hidden * 2), coarse ? 0.01 : 1e-5);
    }
  }
}

TEST(LinearCrossEntropy, ScalesByTheIncomingGradientAndCanRunTwice) {
  at::manual_seed(6);
  const auto c = loss_case(9, 8, 30, 4);
  auto hidden = c.inputs[0].clone().requires_grad_();
  auto weight = c.inputs[1].clone().requires_grad_();
  const auto loss = c.fused({hidden, weight});
  (loss * 3).backward({}, /*retain_graph=*/true);
  const auto once = weight.grad().clone();
  (loss * 3).backward();
  EXPECT_TRUE(at::allclose(weight.grad(), once * 2));
  c.plain({hidden, weight}).backward();
  EXPECT_TRUE(at::allclose(weight.grad(), once * 2 + once / 3, 1e-4, 1e-5));
  auto sink = at::zeros_like(weight);
  const auto added =
      linear_cross_entropy(hidden, weight, at::zeros({9}, at::kLong), {.weight_gradient = sink});
  EXPECT_THROW((added * 2).backward(), c10::ValueError);
}

TEST(LinearCrossEntropy, NamesTheBadTarget) {
  auto targets = at::zeros({5}, at::kLong);
  targets[3] = 7;
  try {
    linear_cross_entropy(at::ones({5, 2}), at::ones({7, 2}), targets);
    FAIL() << "a target of 7 with 7 words was accepted";
  } catch (const c10::IndexError& error) {
    EXPECT_NE(std::string(error.what()).find("got 7 at position 3"), std::string::npos);
  }
}

TEST(LinearCrossEntropy, WithoutGradModeOnlyTheLoss) {
  at::manual_seed(7);
  const auto c = loss_case(9, 8, 30, 4);
  const auto weight = c.inputs[1].clone().requires_grad_();
  auto sink = at::zeros_like(weight);
  const at::NoGradGuard no_grad;
  const auto targets = at::ones({9}, at::kLong);
  const auto loss = linear_cross_entropy(c.inputs[0], weight, targets, {.weight_gradient = sink});
  EXPECT_FALSE(loss.requires_grad());
  EXPECT_EQ(sink.abs().sum().item<double>(), 0);
}

// Two micro-batches with a weight used twice, once with a flat gradient buffer behind .grad() and
// once without.
TEST(Linear, AddsToTheGradientThatIsThere) {
  at::manual_seed(8);
  const auto x = at::randn({2, 3, 6});
  const auto w = at::randn({6, 6}), b = at::randn({6});
  const auto train = [&](auto&& product, bool flat) {
    auto weight = w.clone().requires_grad_(), bias = b.clone().requires_grad_();
    auto input = x.clone().requires_grad_();
    const auto buffer = at::zeros({100});
    if (flat) weight.mutable_grad() = buffer.narrow(0, 10, 36).view({6, 6});
    for (int micro_batch = 0; micro_batch < 2; ++micro_batch) {
      const auto y = product(at::tanh(product(input, weight, bias)), weight, bias);
      (y * (micro_batch + 1)).square().sum().backward();
    }
    if (flat) {
      EXPECT_EQ(weight.grad().data_ptr(), buffer.narrow(0, 10, 36).data_ptr());
      EXPECT_EQ(buffer.narrow(0, 0, 10).abs().sum().item<double>(), 0);
      EXPECT_EQ(buffer.narrow(0, 46, 54).abs().sum().item<double>(), 0);
    }
    return Tensors{weight.grad().clone(), bias.grad(), input.grad()};
  };
  const auto plain = [](const at::Tensor& in, const at::Tensor& weight, const at::Tensor& bias) {
    return at::linear(in, weight, bias);
  };
  const auto want = train(plain, false);
  for (const bool flat : {false, true}) {
    const auto ours = [](const auto& x, const auto& weight, const auto& bias) {
      return kernels::linear(x, weight, bias);
    };
    const auto got = train(ours, flat);
    for (size_t i = 0; i < 3; ++i) EXPECT_LE(relative_error(got[i], want[i]), 1e-6) << i;
  }
}

// Two ranks' halves of the vocabulary one after the other: what they tell each other is known from
// the whole.
class DividedVocabularyTest
    : public ::testing::TestWithParam<std::tuple<at::ScalarType, bool, bool>> {};

TEST_P(DividedVocabularyTest, PartsMakeTheWholeOne) {
  const auto [dtype, sure, by_token] = GetParam();
  at::manual_seed(10);
  const auto weight = at::randn({11, 8}).to(dtype);
  const auto targets = at::tensor({0, 4, -100, 5, 10, 7}, at::kLong);
  // A model that is sure of the targets has gradients much smaller than the probabilities.
  const auto hidden =
      sure ? weight.index_select(0, targets.clamp_min(0)) * 1.1 : at::randn({6, 8}).to(dtype);
  auto whole_hidden = hidden.clone().requires_grad_(), whole = weight.clone().requires_grad_();
  const auto slopes = at::tensor({0.25, -0.5, 1.0, 0.125, 0.25, -1.0}, at::kFloat);
  const auto loss_given = by_token ? TokenLoss([&](const at::Tensor& losses) {
    return Objective{(losses * slopes).sum().item<double>(), slopes};
  })
                                   : TokenLoss(0.25);
  const auto expected = linear_cross_entropy(whole_hidden, whole, targets, {.loss = loss_given});
  expected.backward();

  const auto logits = at::matmul(hidden.to(at::kFloat), weight.t().to(at::kFloat));
  const auto largest = logits.amax(1);
  const auto sums = at::stack(
      {(logits - largest.unsqueeze(1)).gather(1, targets.clamp_min(0).unsqueeze(1)).squeeze(1),
       (logits - largest.unsqueeze(1)).exp().sum(1)});
  auto gradient = at::zeros({6, 8}), of_weight = at::zeros({11, 8});
  for (const int64_t first : {0, 5}) {
    const int64_t rows = first == 0 ? 5 : 6;
    auto own_hidden = hidden.clone().requires_grad_();
    auto own = weight.narrow(0, first, rows).clone().requires_grad_();
    LinearCrossEntropyOptions options{.loss = loss_given};
    options.vocabulary = {.first = first,
                          .total = 11,
                          .maximum = [&](const at::Tensor& values) { values.copy_(largest); },
                          .sum = [&](const at::Tensor& values) { values.copy_(sums); }};
    const auto loss = linear_cross_entropy(own_hidden, own, targets, options);
    EXPECT_NEAR(loss.item<double>() / expected.item<double>(), 1,
                dtype == at::kFloat ? 1e-6 : 1e-2);
    loss.backward();
    gradient += own_hidden.grad().to(at::kFloat);
    of_weight.narrow(0, first, rows).copy_(own.grad());
  }
  const double tolerance = dtype != at::kFloat ? 2e-2 : sure ? 2e-5 : 1e-6;
  EXPECT_LE(relative_error(gradient, whole_hidden.grad().to(at::kFloat)), tolerance);
  EXPECT_LE(relative_error(of_weight, whole.grad().to(at::kFloat)), tolerance);
}
INSTANTIATE_TEST_SUITE_P(Dtypes, DividedVocabularyTest,
                         ::testing::Combine(::testing::Values(at::kFloat, at::kBFloat16, at::kHalf),
                                            ::testing::Bool(), ::testing::Bool()));

// The head's weight also embeds the tokens: autograd's own gradient and ours meet in one buffer.
TEST(Linear, SharesAGradientBufferWithAnEmbedding) {
  at::manual_seed(9);
  const auto w = at::randn({9, 4});
  const auto ids = at::tensor({1, 5, 5, 8}, at::kLong);
  const auto train = [&](auto&& product, bool flat) {
    auto weight = w.clone().requires_grad_();
    if (flat) weight.mutable_grad() = at::zeros({9, 4});
    product(at::embedding(weight, ids), weight).square().sum().backward();
    return weight.grad().clone();
  };
  const auto want =
      train([](const auto& x, const auto& weight) { return at::linear(x, weight); }, false);
  const auto got =
      train([](const auto& x, const auto& weight) { return kernels::linear(x, weight); }, true);
  EXPECT_LE(relative_error(got, want), 1e-6);
}

TEST(IsaChoice, NamesAndLimits) {
  EXPECT_EQ(name_of(Isa::avx512_bf16), "avx512_bf16");
  EXPECT_EQ(name_of(Isa::amx_bf16), "amx_bf16");
  EXPECT_LE(current_isa(), detected_isa());
  if (detected_isa() < Isa::avx512_bf16) {
    EXPECT_THROW(IsaScope{Isa::avx512_bf16}, UserError);
  }
}

TEST(IsaChoice, EnvironmentLowersAndRefuses) {
  setenv("TESSERA_ISA", "sse9", 1);
  EXPECT_THROW(isa_from_environment(), UserError);
  setenv("TESSERA_ISA", "generic", 1);
  EXPECT_EQ(isa_from_environment(), Isa::generic);
  unsetenv("TESSERA_ISA");
  EXPECT_EQ(isa_from_environment(), detected_isa());
}

}  // namespace
}  // namespace tessera::kernels
