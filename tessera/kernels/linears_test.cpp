#include "tessera/kernels/linears.h"

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <memory>
#include <tuple>
#include <vector>

#include "tessera/autograd/deferred_gradients.h"
#include "tessera/autograd/gradient_sink.h"
#include "tessera/kernels/activation.h"
#include "tessera/kernels/adjacent.h"

namespace tessera::kernels {
namespace {

using Tensors = std::vector<at::Tensor>;

constexpr int64_t kIn = 24;

/// Where weights and the gradients that are there already lie.
enum class Place { apart, in_one_buffer };

/// Matrices [O_i, kIn] drawn alike wherever they lie.
Tensors drawn(const std::vector<int64_t>& heights, Place place, at::ScalarType type) {
  at::manual_seed(5);
  int64_t rows = 0;
  for (const auto height : heights) rows += height;
  const auto all = at::randn({rows, kIn}).div_(4).to(type);
  Tensors matrices;
  int64_t first = 0;
  for (const auto height : heights) {
    // As a parameter of a flat buffer is: a tensor with a version of its own.
    auto matrix = at::empty({0}, all.options());
    matrix.set_(all.storage(), first * kIn, {height, kIn}, {kIn, 1});
    matrices.push_back(place == Place::in_one_buffer ? matrix : matrix.clone());
    first += height;
  }
  return matrices;
}

struct Model {
  at::Tensor x;
  Tensors weights, biases;

  Model(Place place, bool kept, bool with_biases, at::ScalarType type = at::kFloat,
        std::vector<int64_t> heights = {16, 16}) {
    weights = drawn(heights, place, type);
    at::manual_seed(6);
    x = at::randn({3, 5, kIn}).to(type).requires_grad_();
    const auto sinks = drawn(heights, place, at::kFloat);
    for (size_t i = 0; i < weights.size(); ++i) {
      weights[i].requires_grad_();
      if (kept) weights[i].mutable_grad() = sinks[i].zero_();
      if (with_biases) biases.push_back(at::randn({heights[i]}).to(type).requires_grad_());
    }
  }

  Tensors leaves() const {
    Tensors all{x};
    all.insert(all.end(), weights.begin(), weights.end());
    all.insert(all.end(), biases.begin(), biases.end());
    return all;
  }
  /// Those of two micro-batches.
  Tensors gradients(auto&& results, auto&& loss) {
    for (int micro_batch = 1; micro_batch <= 2; ++micro_batch) {
      (loss(results(*this)) * micro_batch).backward();
    }
    Tensors all;
    for (const auto& leaf : leaves()) all.push_back(leaf.grad().clone());
    return all;
  }
};

Tensors one_by_one(const Model& model) {
  Tensors results;
  for (size_t i = 0; i < model.weights.size(); ++i) {
    const auto bias = model.biases.empty() ? std::nullopt : std::optional(model.biases[i]);
    results.push_back(at::linear(model.x, model.weights[i], bias));
  }
  return results;
}

auto by_linears(ResultLayout layout) {
  return [layout](const Model& model) {
    return linears(model.x, model.weights, model.biases, {.layout = layout});
  };
}

at::Tensor gated(const Tensors& results) {
  return swiglu(results[0], results[1]).to(at::kFloat).sin().sum();
}

void expect_close(const Tensors& got, const Tensors& want, double bound) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    const auto difference = (got[i].to(at::kDouble) - want[i].to(at::kDouble)).norm();
    EXPECT_LE((difference / want[i].to(at::kDouble).norm()).item<double>(), bound) << i;
  }
}

class LinearsTest
    : public ::testing::TestWithParam<std::tuple<Place, bool, bool, ResultLayout, at::ScalarType>> {
};

TEST_P(LinearsTest, EqualEachAlone) {
  const auto [place, kept, with_biases, layout, type] = GetParam();
  const double bound = type == at::kFloat ? 1e-6 : 0.01;
  Model plain(Place::apart, false, with_biases, type), model(place, kept, with_biases, type);
  expect_close(by_linears(layout)(model), one_by_one(plain), bound);
  expect_close(model.gradients(by_linears(layout), gated), plain.gradients(one_by_one, gated),
               bound);
}

INSTANTIATE_TEST_SUITE_P(All, LinearsTest,
                         ::testing::Combine(::testing::Values(Place::apart, Place::in_one_buffer),
                                            ::testing::Bool(), ::testing::Bool(),
                                            ::testing::Values(ResultLayout::apart,
                                                              ResultLayout::side_by_side),
                                            ::testing::Values(at::kFloat, at::kBFloat16)));

// Gradients that hold no numbers yet: all, or one of those that are one matrix.
TEST(Linears, WriteWhatIsUnwritten) {
  Model plain(Place::apart, false, false);
  const auto want = plain.gradients(one_by_one, gated);
  for (const auto place : {Place::apart, Place::in_one_buffer}) {
    for (const auto layout : {ResultLayout::apart, ResultLayout::side_by_side}) {
      for (const size_t unwritten : {1, 2}) {
        Model model(place, true, false);
        for (size_t i = 0; i < unwritten; ++i) {
          autograd::set_unwritten(model.weights[i].grad().fill_(NAN));
        }
        expect_close(model.gradients(by_linears(layout), gated), want, 1e-6);
      }
    }
  }
}

// One product: the results lie side by side, and swiglu's gradients do.
TEST(Linears, AreOneProductWhereWeightsAreOneMatrix) {
  Model model(Place::in_one_buffer, true, false);
  const auto rows = [](const at::Tensor& y) { return y.detach().reshape({-1, y.size(-1)}); };
  const auto results = by_linears(ResultLayout::side_by_side)(model);
  EXPECT_TRUE(side_by_side({rows(results[0]), rows(results[1])}).defined());
  const auto apart = by_linears(ResultLayout::apart)(model);
  EXPECT_FALSE(side_by_side({rows(apart[0]), rows(apart[1])}).defined());
  const auto gradients = torch::autograd::grad({gated(results)}, results);
  EXPECT_TRUE(side_by_side({rows(gradients[0]), rows(gradients[1])}).defined());
}

TEST(Linears, HaveWeightsOfOtherHeights) {
  const std::vector<int64_t> heights{16, 8, 4};
  const auto loss = [](const Tensors& results) {
    return (results[0].sin().sum() + results[1].square().sum()) + results[2].cos().sum();
  };
  Model plain(Place::apart, false, false, at::kFloat, heights);
  const auto want = plain.gradients(one_by_one, loss);
  for (const auto place : {Place::apart, Place::in_one_buffer}) {
    Model model(place, true, false, at::kFloat, heights);
    expect_close(model.gradients(by_linears(ResultLayout::side_by_side), loss), want, 1e-6);
  }
}

// A result that no loss sees, a weight that is not trained, gradients that are asked for by name.
TEST(Linears, PartsOfThem) {
  const auto first = [](const Tensors& results) { return results[0].sin().sum(); };
  Model plain(Place::apart, false, false), model(Place::in_one_buffer, true, false);
  first(one_by_one(plain)).backward();
  const auto version = model.weights[1].grad()._version();
  first(by_linears(ResultLayout::side_by_side)(model)).backward();
  expect_close({model.x.grad(), model.weights[0].grad()}, {plain.x.grad(), plain.weights[0].grad()},
               1e-6);
  EXPECT_EQ(model.weights[1].grad()._version(), version);  // nothing arrived

  Model frozen(Place::in_one_buffer, true, false), whole(Place::apart, false, false);
  frozen.weights[1].requires_grad_(false);
  gated(by_linears(ResultLayout::side_by_side)(frozen)).backward();
  gated(one_by_one(whole)).backward();
  expect_close({frozen.x.grad(), frozen.weights[0].grad()},
               {whole.x.grad(), whole.weights[0].grad()}, 1e-6);
  EXPECT_EQ(frozen.weights[1].grad().abs().sum().item<double>(), 0);

  Model named(Place::in_one_buffer, false, false);
  const auto leaves = named.leaves();
  const auto got =
      torch::autograd::grad({gated(by_linears(ResultLayout::side_by_side)(named))}, leaves);
  expect_close(got, {whole.x.grad(), whole.weights[0].grad(), whole.weights[1].grad()}, 1e-6);
}

TEST(Linears, WaitInADeferScope) {
  Model plain(Place::apart, false, false), model(Place::in_one_buffer, true, false);
  gated(one_by_one(plain)).backward();
  const auto deferred = std::make_shared<autograd::DeferredGradients>();
  {
    const autograd::DeferScope scope(deferred);
    gated(by_linears(ResultLayout::side_by_side)(model)).backward();
  }
  expect_close({model.x.grad()}, {plain.x.grad()}, 1e-6);
  EXPECT_EQ(model.weights[0].grad().abs().sum().item<double>(), 0);
  deferred->run();
  for (size_t i = 0; i < 2; ++i) {
    expect_close({model.weights[i].grad()}, {plain.weights[i].grad()}, 1e-6);
  }
}

TEST(Linears, UnderAutocast) {
  Model plain(Place::apart, false, true), model(Place::in_one_buffer, true, true);
  const auto want = plain.gradients(one_by_one, gated);
  at::autocast::set_autocast_enabled(at::kCPU, true);
  const auto results = by_linears(ResultLayout::side_by_side)(model);
  EXPECT_EQ(results[0].scalar_type(), at::kBFloat16);
  const auto loss = gated(results);
  at::autocast::set_autocast_enabled(at::kCPU, false);
  at::autocast::clear_cache();
  (loss * 3).backward();  // two micro-batches' weights
  Tensors got;
  for (const auto& leaf : model.leaves()) got.push_back(leaf.grad());
  expect_close(got, want, 0.02);
}

TEST(Adjacent, MatricesThatAreOne) {
  const auto all = at::arange(24).view({4, 6});
  const auto left = all.narrow(1, 0, 2), right = all.narrow(1, 2, 4);
  EXPECT_TRUE(at::equal(side_by_side({left, right}), all));
  EXPECT_FALSE(side_by_side({right, left}).defined());
  EXPECT_FALSE(side_by_side({left, all.narrow(1, 3, 3)}).defined());
  EXPECT_FALSE(side_by_side({left, at::Tensor()}).defined());
  EXPECT_FALSE(side_by_side({all}).defined());
  const auto above = all.narrow(0, 0, 1), below = all.narrow(0, 1, 3);
  EXPECT_TRUE(at::equal(one_below_other({above, below}), all));
  EXPECT_FALSE(one_below_other({below, above}).defined());
  EXPECT_FALSE(one_below_other({above, below.clone()}).defined());
  EXPECT_FALSE(one_below_other({left, right}).defined());
}

}  // namespace
}  // namespace tessera::kernels
