#include "tessera/precision/autocast.h"

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "tessera/kernels/activation.h"
#include "tessera/kernels/attention.h"
#include "tessera/kernels/autocast.h"
#include "tessera/kernels/linear.h"
#include "tessera/kernels/linear_cross_entropy.h"
#include "tessera/kernels/reference.h"
#include "tessera/kernels/rms_norm.h"
#include "tessera/kernels/rotary.h"
#include "tessera/nn/layers.h"

namespace tessera::precision {
namespace {

using at::kBFloat16, at::kFloat, at::kHalf;

double relative_error(const at::Tensor& got, const at::Tensor& want) {
  const auto w = want.to(at::kDouble);
  return ((got.to(at::kDouble) - w).norm() / w.norm()).item<double>();
}

at::Tensor parameter(at::IntArrayRef sizes, double scale) {
  auto weight = (at::randn(sizes) * scale).requires_grad_();
  weight.mutable_grad() = at::zeros(sizes);
  return weight;
}

TEST(Autocast, RestoresWhatWasBefore) {
  const auto dtype = at::autocast::get_autocast_dtype(at::kCPU);
  {
    const Autocast outer(kBFloat16);
    {
      const Autocast inner(kHalf);
      EXPECT_EQ(kernels::linear(at::ones({1, 4}), at::ones({4, 4})).scalar_type(), kHalf);
    }
    EXPECT_EQ(kernels::linear(at::ones({1, 4}), at::ones({4, 4})).scalar_type(), kBFloat16);
  }
  EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
  EXPECT_EQ(at::autocast::get_autocast_dtype(at::kCPU), dtype);
  EXPECT_EQ(kernels::linear(at::ones({1, 4}), at::ones({4, 4})).scalar_type(), kFloat);
  EXPECT_THROW(Autocast guard(at::kDouble), c10::ValueError);
}

TEST(Autocast, CastsAWeightOnceAGuard) {
  auto weight = at::empty({4, 4}).requires_grad_();
  weight.set_data(at::ones({20}).slice(0, 4, 20).view({4, 4}));  // part of a flat buffer
  at::Tensor first;
  {
    const Autocast guard(kBFloat16);
    first = kernels::autocast_weight(weight);
    EXPECT_TRUE(kernels::autocast_weight(weight).is_alias_of(first));
  }
  weight.mutable_data_ptr<float>()[0] = 2;  // as an optimizer's kernel does
  const Autocast guard(kBFloat16);
  EXPECT_EQ(kernels::autocast_weight(weight)[0][0].item<float>(), 2);
}

TEST(Autocast, DtypesOfEveryOperator) {
  const auto x = at::randn({2, 6, 32});
  const auto heads = at::randn({2, 6, 4, 8});
  const auto [cos, sin] = kernels::rotary_tables(6, 8);
  const auto targets = at::zeros({12}, at::kLong);
  for (const auto dtype : {kBFloat16, kHalf}) {
    const Autocast guard(dtype);
    EXPECT_EQ(kernels::linear(x, at::ones({8, 32}), at::ones({8})).scalar_type(), dtype);
    EXPECT_EQ(kernels::linear_in_out(x, at::ones({32, 8})).scalar_type(), dtype);
    EXPECT_EQ(kernels::attention(heads, heads, heads).scalar_type(), dtype);
    EXPECT_EQ(kernels::rotary(heads.to(dtype), cos, sin).scalar_type(), dtype);
    EXPECT_EQ(kernels::swiglu(x.to(dtype), x.to(dtype)).scalar_type(), dtype);
    EXPECT_EQ(
        kernels::linear_cross_entropy(x.view({12, 32}), at::ones({8, 32}), targets).scalar_type(),
        kFloat);
    EXPECT_EQ(kernels::linear(x.to(at::kDouble), at::ones({8, 32}, at::kDouble)).scalar_type(),
              at::kDouble);  // as LibTorch's: never cast
  }
}

TEST(Autocast, LinearEqualsLibTorchsAndKeepsAFloat32Gradient) {
  at::manual_seed(4);
  const auto x = at::randn({5, 7, 64});
  auto weight = parameter({48, 64}, 0.1), bias = parameter({48}, 1);
  auto ours_x = x.clone().requires_grad_(), plain_x = x.clone().requires_grad_();
  auto plain = weight.detach().clone().requires_grad_();
  const auto grad = at::randn({5, 7, 48}).to(kBFloat16);
  const void* sink = weight.grad().const_data_ptr();
  {
    const Autocast guard(kBFloat16);
    const auto y = kernels::linear(ours_x, weight, bias);
    const auto want = at::linear(plain_x, plain, bias.detach());
    EXPECT_TRUE(at::equal(y, want));
    y.backward(grad);
    want.backward(grad);
  }
  EXPECT_TRUE(at::equal(ours_x.grad(), plain_x.grad()));
  EXPECT_EQ(weight.grad().const_data_ptr(), sink);
  const auto rows = x.view({35, 64}).to(kBFloat16).to(at::kDouble);
  const auto exact = grad.view({35, 48}).to(at::kDouble).t().mm(rows);
  EXPECT_LE(relative_error(weight.grad(), exact), relative_error(plain.grad(), exact));
  EXPECT_LT(relative_error(bias.grad(), grad.to(at::kDouble).view({35, 48}).sum(0)), 1e-6);
}

TEST(Autocast, RmsNormGivesWhatTheNextProductWouldSee) {
  at::manual_seed(4);
  for (const auto dtype : {kBFloat16, kHalf}) {
    auto x = at::randn({33, 40}).requires_grad_(), same_x = x.detach().clone().requires_grad_();
    auto weight = parameter({40}, 1), same_weight = weight.detach().clone().requires_grad_();
    const auto grad = at::randn({33, 40}).to(dtype);
    const Autocast guard(dtype);
    const auto y = kernels::rms_norm(x, weight, 1e-5);
    const auto want = kernels::rms_norm_reference(same_x, same_weight, 1e-5).to(dtype);
    EXPECT_EQ(y.scalar_type(), dtype);
    EXPECT_LT(relative_error(y, want), 1e-4);  // equal but for ties in float32
    y.backward(grad);
    want.backward(grad);
    EXPECT_EQ(x.grad().scalar_type(), kFloat);
    EXPECT_LT(relative_error(x.grad(), same_x.grad()), 1e-5);
    EXPECT_LT(relative_error(weight.grad(), same_weight.grad()), 1e-5);
  }
}

TEST(Autocast, LossIsThatOfBfloat16ProductsWithAFloat32Gradient) {
  at::manual_seed(4);
  const auto hidden = at::randn({50, 32});
  auto weight = parameter({200, 32}, 0.2);
  const auto targets = at::randint(200, {50}, at::kLong);
  const auto narrow = weight.detach().to(kBFloat16).requires_grad_();
  const auto want = kernels::linear_cross_entropy(hidden.to(kBFloat16), narrow, targets);
  {
    const Autocast guard(kBFloat16);
    const auto loss =
        kernels::linear_cross_entropy(hidden, weight, targets, {.weight_gradient = weight.grad()});
    EXPECT_EQ(loss.item<float>(), want.item<float>());
    loss.backward();
  }
  want.backward();
  EXPECT_LT(relative_error(weight.grad(), narrow.grad()), 4e-3);  // that one is rounded
  auto returned = weight.detach().clone().requires_grad_();
  const Autocast guard(kBFloat16);
  kernels::linear_cross_entropy(hidden, returned, targets).backward();
  EXPECT_TRUE(at::equal(returned.grad(), weight.grad()));
}

// A block of layers: near the float32 gradients, all of them in float32.
TEST(Autocast, LayersTrainInFloat32Gradients) {
  at::manual_seed(4);
  nn::Embedding embedding(50, 32);
  nn::RMSNorm rms_norm(32, 1e-5);
  nn::LayerNorm layer_norm(32, 1e-5);
  nn::Linear linear(32, 32);
  nn::Conv1D convolution(32, 32);
  nn::LanguageModelHead head(embedding->weight);  // tied
  std::vector<at::Tensor> parameters = {embedding->weight, rms_norm->weight, layer_norm->weight,
                                        layer_norm->bias,  linear->weight,   convolution->weight,
                                        convolution->bias};
  for (auto& p : parameters) {
    p.mutable_grad() = at::zeros(p.sizes());
    p.detach().normal_(p.dim() == 1 ? 1 : 0, 0.2);
  }
  const auto ids = at::randint(50, {3, 8}, at::kLong), targets = at::randint(50, {3, 8}, at::kLong);
  const auto gradients = [&] {
    auto x = embedding(ids);
    x = x + linear(rms_norm(x));
    x = x + convolution(layer_norm(x));
    head(x, targets, 1.0 / 24).backward();
    std::vector<at::Tensor> result;
    for (auto& p : parameters) {
      result.push_back(p.grad().clone());
      p.mutable_grad().zero_();
    }
    return result;
  };
  const auto want = gradients();
  for (const auto& [dtype, bound] : {std::pair(kBFloat16, 2e-2), {kHalf, 3e-3}}) {
    const Autocast guard(dtype);
    const auto got = gradients();
    for (size_t i = 0; i < got.size(); ++i) {
      EXPECT_EQ(got[i].scalar_type(), kFloat);
      EXPECT_LT(relative_error(got[i], want[i]), bound) << i;
      EXPECT_GT(relative_error(got[i], want[i]), 1e-5) << i;  // it did run in 16 bits
    }
  }
}

}  // namespace
}  // namespace tessera::precision
