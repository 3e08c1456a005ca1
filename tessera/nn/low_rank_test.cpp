#include "tessera/nn/low_rank.h"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "tessera/nn/dropout.h"

namespace tessera::nn {
namespace {

void fill_adapted(LinearImpl& layer) {
  torch::manual_seed(7);
  const torch::NoGradGuard no_grad;
  for (auto& item : layer.named_parameters())
    item.value().copy_(torch::randn(item.value().sizes()));
}

torch::Tensor named(LinearImpl& layer, const char* name) { return layer.named_parameters()[name]; }

/// What the layer multiplies by, out by in.
torch::Tensor sum_of(LinearImpl& layer, double scale, bool in_out) {
  const auto weight = in_out ? layer.weight.t() : layer.weight;
  return weight + scale * named(layer, "lora_B").matmul(named(layer, "lora_A"));
}

class AdapterTest : public ::testing::TestWithParam<bool> {};

TEST_P(AdapterTest, AddsItsProductToAWeightOfEitherLayout) {
  const bool in_out = GetParam();
  Linear layer(6, 9, /*with_bias=*/true, torch::TensorOptions(),
               in_out ? WeightLayout::in_out : WeightLayout::out_in);
  add_low_rank(*layer, {.rank = 3, .scale = 2});
  fill_adapted(*layer);
  const auto x = torch::randn({2, 4, 6});
  const auto y = layer(x);
  EXPECT_TRUE(
      torch::allclose(y, at::linear(x, sum_of(*layer, 2, in_out), layer->bias), 1e-5, 1e-5));
  y.square().sum().backward();
  EXPECT_FALSE(layer->weight.grad().defined());
  EXPECT_TRUE(layer->bias.grad().defined());
  EXPECT_TRUE(named(*layer, "lora_A").grad().defined());
}
INSTANTIATE_TEST_SUITE_P(Layouts, AdapterTest, ::testing::Bool());

// DoRA: rows have the lengths that the vector says; the norm's own gradient is left out.
TEST(Adapter, MagnitudesAreTheLengthsOfRows) {
  Linear layer(6, 9, /*with_bias=*/true);
  add_low_rank(*layer, {.rank = 3, .scale = 2, .magnitude = true});
  fill_adapted(*layer);
  const auto x = torch::randn({4, 6});
  const auto y = layer(x);
  const auto whole = sum_of(*layer, 2, false);
  const auto norms = whole.detach().norm(2, 1, /*keepdim=*/true);
  const auto magnitude = named(*layer, "lora_magnitude_vector");
  const auto expected = at::linear(x, magnitude.unsqueeze(1) / norms * whole, layer->bias);
  EXPECT_TRUE(torch::allclose(y, expected, 1e-5, 1e-5));
  const auto parameters = std::vector{named(*layer, "lora_A"), named(*layer, "lora_B"), magnitude};
  const auto want = torch::autograd::grad({expected.square().sum()}, parameters);
  const auto got = torch::autograd::grad({y.square().sum()}, parameters);
  for (size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(torch::allclose(got[i], want[i], 1e-4, 1e-4));
}

TEST(Adapter, WhatItDropsItDropsForItselfAlone) {
  for (const bool magnitude : {false, true}) {
    Linear layer(6, 9, /*with_bias=*/true);
    add_low_rank(
        *layer,
        {.rank = 3, .scale = 2, .dropout = 0.5, .magnitude = magnitude, .dropout_name = "a"});
    fill_adapted(*layer);
    const auto x = torch::randn({4, 6});
    const RandomScope scope(RandomContext{.seed = 1});
    const auto dropped = Dropout("a.lora_dropout", 0.5)(x);
    ASSERT_FALSE(dropped.equal(x));
    const auto delta = 2 * named(*layer, "lora_B").matmul(named(*layer, "lora_A"));
    const auto norms = (layer->weight + delta).norm(2, 1);
    const auto factor =
        magnitude ? named(*layer, "lora_magnitude_vector") / norms : torch::ones({9});
    // PEFT's: base(x) + (f - 1) base(dropped) + f adapter(dropped).
    const auto expected = at::linear(x, layer->weight, layer->bias) +
                          (factor - 1) * at::linear(dropped, layer->weight) * (magnitude ? 1 : 0) +
                          factor * at::linear(dropped, delta);
    EXPECT_TRUE(torch::allclose(layer(x), expected, 1e-4, 1e-4)) << magnitude;
    layer->eval();
    EXPECT_FALSE(torch::allclose(layer(x), expected, 1e-4, 1e-4));
  }
}

TEST(Adapter, AddsToRowsOfATable) {
  Embedding table(7, 5);
  add_low_rank(*table, {.rank = 2, .scale = 3});
  const auto parameters = table->named_parameters();
  {
    const torch::NoGradGuard no_grad;
    for (auto& item : table->named_parameters())
      item.value().copy_(torch::randn(item.value().sizes()));
  }
  const auto ids = torch::tensor({{1, 6, 1}, {0, 3, 5}});
  const auto& a = parameters["lora_embedding_A"];
  const auto& b = parameters["lora_embedding_B"];
  const auto whole = table->weight + 3 * a.t().matmul(b.t());
  EXPECT_TRUE(torch::allclose(table(ids), at::embedding(whole, ids), 1e-5, 1e-5));
  table(ids).sum().backward();
  EXPECT_FALSE(table->weight.grad().defined());
  EXPECT_TRUE(a.grad().defined() && b.grad().defined());
}

TEST(Adapter, RefusesARankAboveBothSides) {
  Linear layer(6, 9);
  EXPECT_THROW(add_low_rank(*layer, {.rank = 10}), c10::ValueError);
}

// Ranks that have some features of the input each drop what the whole layer drops.
TEST(DropoutModule, FeaturesDropTheSameInParts) {
  const auto x = torch::ones({3, 4, 10});
  const RandomScope scope(RandomContext{.seed = 5, .step = 1, .first_row = 2});
  const auto whole = Dropout("layer", 0.4)(x);
  Dropout part("layer", 0.4);
  part->divide_features(3, 10);
  EXPECT_TRUE(part(x.narrow(2, 3, 5).contiguous()).equal(whole.narrow(2, 3, 5)));
}

/// What a job's products are taken by holds in training alone, beside an adapter too.
TEST(Linear, TakesItsProductsAsToldWhileItTrains) {
  struct Doubled : kernels::LinearProducts {
    torch::Tensor forward(const torch::Tensor& rows, const torch::Tensor& weight) const override {
      return 2 * rows.matmul(weight.t());
    }
    torch::Tensor input_gradient(const torch::Tensor& gradient, const torch::Tensor& weight,
                                 bool /*trains*/) const override {
      return 3 * gradient.matmul(weight);
    }
    torch::Tensor weight_gradient(const torch::Tensor& /*sink*/, const torch::Tensor& rows,
                                  const torch::Tensor& gradient, bool in_out,
                                  const torch::TensorOptions& /*options*/) const override {
      const auto product = 5 * gradient.t().matmul(rows);
      return in_out ? product.t() : product;
    }
  };
  for (const auto layout : {WeightLayout::out_in, WeightLayout::in_out}) {
    Linear layer(6, 9, /*with_bias=*/true, torch::TensorOptions(), layout);
    fill_adapted(*layer);
    layer->products = std::make_shared<Doubled>();
    const auto plain = at::linear(
        torch::ones({4, 6}), layout == WeightLayout::in_out ? layer->weight.t() : layer->weight);
    const auto x = torch::ones({4, 6}).requires_grad_();
    const auto y = layer(x);
    EXPECT_TRUE(torch::allclose(y, 2 * plain + layer->bias));
    y.sum().backward();
    const auto weight = layout == WeightLayout::in_out ? layer->weight.t() : layer->weight;
    EXPECT_TRUE(torch::allclose(x.grad()[0], 3 * weight.sum(0)));
    EXPECT_TRUE(torch::allclose(layer->weight.grad(), torch::full_like(layer->weight, 20)));
    {
      const torch::NoGradGuard evaluation;
      EXPECT_TRUE(torch::allclose(layer(x), plain + layer->bias));
      const RandomScope first_forward_of_a_checkpointed_module(RandomContext{});
      EXPECT_TRUE(torch::allclose(layer(x), 2 * plain + layer->bias));
    }
    add_low_rank(*layer, {.rank = 3});
    const torch::NoGradGuard no_grad;
    named(*layer, "lora_A").zero_(), named(*layer, "lora_B").zero_();
    const RandomScope training(RandomContext{});
    EXPECT_TRUE(torch::allclose(layer(x), 2 * plain + layer->bias));
  }
}

}  // namespace
}  // namespace tessera::nn
