#include "tessera/nn/layers.h"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "tessera/base/file.h"
#include "tessera/nn/initialise.h"
#include "tessera/nn/linears.h"
#include "tessera/nn/low_rank.h"

namespace tessera::nn {
namespace {

TEST(Initialise, EqualsTheRecipeToTheBit) {
  const auto recipe = nlohmann::json::parse(read_file("tests/fixtures/portable_init.json"));
  for (const auto& vector : recipe["vectors"]) {
    const auto out = torch::empty({16});
    fill_portable(out, vector["name"].get<std::string>(), vector["seed"].get<int64_t>(), 0.02);
    for (int64_t i = 0; i < 16; ++i) {
      EXPECT_EQ(out[i].item<double>(), vector["values"][static_cast<size_t>(i)].get<double>());
    }
  }
}

TEST(Initialise, AnySliceAloneIsThatSliceOfTheWhole) {
  const auto whole = torch::empty({1000}), slice = torch::empty({77});
  fill_portable(whole, "a.weight", 3, 0.5);
  fill_portable(slice, "a.weight", 3, 0.5, 901);
  EXPECT_TRUE(torch::equal(slice.narrow(0, 0, 77), whole.narrow(0, 901, 77)));
  EXPECT_NEAR(whole.std().item<double>(), 0.5, 0.05);
}

TEST(Initialise, NormalNumbersAreNormal) {
  const auto whole = torch::empty({100000}), slice = torch::empty({77});
  fill_portable_normal(whole, "a.weight", 3, 0.5);
  fill_portable_normal(slice, "a.weight", 3, 0.5, 901);
  EXPECT_TRUE(torch::equal(slice, whole.narrow(0, 901, 77)));
  EXPECT_NEAR(whole.mean().item<double>(), 0, 0.01);
  EXPECT_NEAR(whole.std().item<double>(), 0.5, 0.005);
  const auto within = whole.abs().le(0.5).to(torch::kFloat64).mean().item<double>();
  EXPECT_NEAR(within, 0.6827, 0.01);
}

TEST(RMSNorm, AddsItsOffsetToTheWeight) {
  RMSNorm plain(5, 1e-6), around_one(5, 1e-6, torch::TensorOptions(), /*offset=*/1);
  const auto x = torch::randn({3, 5}), weight = torch::randn({5});
  {
    const torch::NoGradGuard no_grad;
    plain->weight.copy_(weight + 1);
    around_one->weight.copy_(weight);
  }
  const auto expected = plain(x), found = around_one(x);
  EXPECT_TRUE(torch::equal(expected, found));
  expected.square().sum().backward();
  found.square().sum().backward();
  EXPECT_TRUE(torch::equal(plain->weight.grad(), around_one->weight.grad()));
}

// The gradient reaches the rows used, into an existing (flat) gradient and as a new one alike,
// repeated rows summed.
TEST(Embedding, GradientIsTheSameIntoAnExistingBuffer) {
  const auto ids = torch::tensor({{4, 0, 4}, {1, 1, 1}});
  const auto scale = torch::randn({2, 3, 5});
  Embedding fresh(6, 5), flat(6, 5);
  const auto values = torch::randn({6, 5});
  {
    const torch::NoGradGuard no_grad;
    fresh->weight.copy_(values), flat->weight.copy_(values);
  }
  flat->weight.mutable_grad() = torch::ones({6, 5});
  EXPECT_TRUE(torch::equal(fresh(ids), at::embedding(values, ids)));
  (fresh(ids) * scale).sum().backward();
  (flat(ids) * scale).sum().backward();
  EXPECT_TRUE(torch::allclose(flat->weight.grad(), fresh->weight.grad() + 1, 1e-5, 1e-5));
  const auto expected = at::embedding_dense_backward(scale, ids, 6, -1, false);
  EXPECT_TRUE(torch::allclose(fresh->weight.grad(), expected, 1e-5, 1e-5));
}

TEST(Embedding, ABfloat16WeightGetsAFloat32Gradient) {
  Embedding embedding(6, 5, torch::TensorOptions(torch::kBFloat16));
  embedding->weight.mutable_grad() = torch::full({6, 5}, 256.f);  // a bfloat16 steps by 2 here
  const auto sink = embedding->weight.grad();
  for (int i = 0; i < 3; ++i) embedding(torch::tensor({2, 2, 5})).sum().backward();
  EXPECT_TRUE(embedding->weight.grad().is_alias_of(sink));
  EXPECT_EQ(sink[2][0].item<float>(), 262);
  EXPECT_EQ(sink[5][4].item<float>(), 259);
  EXPECT_EQ(sink[0][0].item<float>(), 256);
}

// Whatever a layer is, it gives what it gives alone; one that others look at is called.
TEST(Linears, GiveWhatEachLayerGives) {
  const auto x = torch::randn({2, 3, 8}).requires_grad_();
  Linear first(8, 5), second(8, 4), with_bias(8, 4, /*with_bias=*/true), watched(8, 6),
      adapted(8, 5);
  int64_t i = 0;
  for (auto layer : {first, second, with_bias, watched, adapted}) {
    for (auto& parameter : layer->parameters()) {
      fill_portable(parameter.detach(), "weight", ++i, 0.3);
    }
  }
  add_low_rank(*adapted, {.rank = 2});
  for (auto& parameter : adapted->parameters()) {
    fill_portable(parameter.detach(), "adapter", ++i, 0.3);
  }
  int calls = 0;
  watched->add_hooks({.before_forward = [&] { ++calls; }});
  const auto train = [&](const std::vector<torch::Tensor>& results) {
    auto loss = torch::zeros({});
    for (const auto& result : results) loss = loss + result.sin().sum();
    return torch::autograd::grad({loss}, {x})[0];
  };
  for (const auto& layers : std::vector<std::pair<Linear, Linear>>{
           {first, second}, {second, with_bias}, {first, watched}, {adapted, first}}) {
    auto [one, other] = layers;
    const auto results = linears(x, {one, other});
    EXPECT_TRUE(torch::equal(results[0], one(x)));
    EXPECT_TRUE(torch::equal(results[1], other(x)));
    EXPECT_TRUE(torch::allclose(train(results), train({one(x), other(x)}), 1e-5, 1e-6));
  }
  EXPECT_EQ(calls, 3);
}

TEST(Layers, LiveOnTheMetaDevice) {
  const torch::TensorOptions meta(torch::kMeta);
  Linear linear(1 << 20, 1 << 20, true, meta);  // 4 TiB were it real
  EXPECT_EQ(linear->weight.numel(), int64_t{1} << 40);
  EXPECT_TRUE(Embedding(8, 4, meta)->weight.is_meta());
  EXPECT_TRUE(RMSNorm(8, 1e-5, meta)->weight.is_meta());
}

TEST(LanguageModelHead, LossEqualsCrossEntropyOfTheLogits) {
  LanguageModelHead head(16, 50);
  fill_portable(head->weight.detach(), "head", 1, 1.0);
  const auto hidden = torch::randn({2, 7, 16});
  auto targets = torch::randint(0, 50, {2, 7}, torch::kInt64);
  targets[1][3] = -100;
  const auto logits = head(hidden, torch::Tensor(), 1.0);
  const auto expected =
      at::cross_entropy_loss(logits.reshape({-1, 50}), targets.reshape(-1), {}, at::Reduction::Sum);
  EXPECT_NEAR(head(hidden, targets, 0.25).item<double>(), 0.25 * expected.item<double>(), 1e-4);
}

// More ranks than rows of the table: some have none.
TEST(Embedding, PartsGiveTheirRowsAndZeros) {
  const auto whole = torch::randn({3, 4});
  const auto ids = torch::tensor({2, 0, 1, 2, 2}, torch::kLong);
  auto sum = torch::zeros({5, 4}), gradient = torch::zeros({0, 4});
  for (const auto& [first, count] : {std::pair<int64_t, int64_t>{0, 2}, {2, 1}, {3, 0}}) {
    Embedding part(count, 4);
    part->first_row = first;
    {
      const torch::NoGradGuard no_grad;
      part->weight.copy_(whole.narrow(0, std::min<int64_t>(first, 3), count));
    }
    const auto rows = part(ids);
    rows.sum().backward();
    sum += rows.detach();
    const auto own = part->weight.grad();
    gradient = torch::cat({gradient, own.defined() ? own : torch::zeros({count, 4})});
  }
  EXPECT_TRUE(torch::equal(sum, whole.index_select(0, ids)));
  EXPECT_TRUE(torch::equal(gradient.select(1, 0), torch::tensor({1.0F, 1.0F, 3.0F})));
}

}  // namespace
}  // namespace tessera::nn
