// Parameters in 16 bits whose .grad() is float32: the operators add to it in place, unrounded.
#include "tessera/autograd/gradient_sink.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "tessera/kernels/cpu/isa.h"
#include "tessera/kernels/layer_norm.h"
#include "tessera/kernels/linear.h"
#include "tessera/kernels/linear_cross_entropy.h"
#include "tessera/kernels/reference.h"
#include "tessera/kernels/rms_norm.h"

namespace tessera::autograd {
namespace {

using namespace kernels;  // the operators that take part

using Tensors = std::vector<at::Tensor>;
using Operator = std::function<at::Tensor(const Tensors&)>;

double relative_distance(const at::Tensor& got, const at::Tensor& want) {
  const auto w = want.to(at::kDouble);
  return ((got.to(at::kDouble) - w).norm() / w.norm()).item<double>();
}

/// inputs[0] is x, the others are parameters.
struct SinkCase {
  std::string name;
  Operator ours, plain;
  Tensors inputs;
};

std::vector<SinkCase> cases() {
  at::manual_seed(5);
  const auto x = at::randn({4, 9, 48});
  return {
      {"linear",
       [](const Tensors& t) { return kernels::linear(t[0], t[1], t[2]); },
       [](const Tensors& t) { return at::linear(t[0], t[1], t[2]); },
       {x, at::randn({40, 48}) * 0.1, at::randn({40})}},
      {"linear_in_out",
       [](const Tensors& t) { return linear_in_out(t[0], t[1], t[2]); },
       [](const Tensors& t) { return at::linear(t[0], t[1].t(), t[2]); },
       {x, at::randn({48, 40}) * 0.1, at::randn({40})}},
      {"rms_norm",
       [](const Tensors& t) { return rms_norm(t[0], t[1], 1e-5); },
       [](const Tensors& t) { return rms_norm_reference(t[0], t[1], 1e-5); },
       {x, at::randn({48})}},
      {"layer_norm",
       [](const Tensors& t) { return layer_norm(t[0], t[1], t[2], 1e-5); },
       [](const Tensors& t) { return at::layer_norm(t[0], {48}, t[1], t[2], 1e-5); },
       {x, at::randn({48}), at::randn({48})}},
  };
}

/// Two backward passes with the same incoming gradient; returns the parameters' gradients.
Tensors twice(const Operator& op, const Tensors& inputs, bool float32_gradients) {
  Tensors leaves;
  for (const auto& x : inputs) {
    leaves.push_back(x.detach().clone().requires_grad_());
    if (float32_gradients && leaves.size() > 1) {
      leaves.back().mutable_grad() = at::zeros(x.sizes(), at::kFloat);
    }
  }
  Tensors gradients;
  std::vector<const void*> places;
  for (const auto& leaf : leaves) {
    places.push_back(leaf.grad().defined() ? leaf.grad().const_data_ptr() : nullptr);
  }
  for (int pass = 0; pass < 2; ++pass) {
    const auto y = op(leaves);
    const auto grad = at::linspace(-1, 1, y.numel()).reshape(y.sizes()).to(at::kBFloat16);
    y.backward(grad.to(y.scalar_type()));
  }
  for (size_t i = 1; i < leaves.size(); ++i) {
    if (float32_gradients) {
      EXPECT_EQ(leaves[i].grad().const_data_ptr(), places[i]);
    }
    gradients.push_back(leaves[i].grad());
  }
  return gradients;
}

TEST(GradientSink, Bfloat16ParametersGetFloat32Gradients) {
  for (const auto& c : cases()) {
    Tensors narrow, wide;
    for (const auto& x : c.inputs) {
      narrow.push_back(x.to(at::kBFloat16));
      wide.push_back(narrow.back().to(at::kDouble));
    }
    const auto got = twice(c.ours, narrow, true);
    const auto want = twice(c.plain, wide, false);
    const bool exact = detected_isa() >= Isa::avx512_bf16;  // else the product is rounded once
    for (size_t i = 0; i < got.size(); ++i) {
      EXPECT_EQ(got[i].scalar_type(), at::kFloat) << c.name;
      // The norms round x / rms(x) to bfloat16 on the way, as Hugging Face's do.
      const bool rounds = c.name == "rms_norm" || (!exact && i == 0);
      EXPECT_LT(relative_distance(got[i], want[i]), rounds ? 3e-3 : 1e-5) << c.name << " " << i;
    }
  }
}

TEST(GradientSink, Float16ParametersGetFloat32Gradients) {
  for (const auto& c : cases()) {
    Tensors narrow, wide;
    for (const auto& x : c.inputs) {
      narrow.push_back(x.to(at::kHalf));
      wide.push_back(narrow.back().to(at::kDouble));
    }
    const auto got = twice(c.ours, narrow, true);
    const auto want = twice(c.plain, wide, false);
    for (size_t i = 0; i < got.size(); ++i) {
      EXPECT_EQ(got[i].scalar_type(), at::kFloat) << c.name;
      EXPECT_LT(relative_distance(got[i], want[i]), 2e-3) << c.name << " " << i;
    }
  }
}

TEST(GradientSink, SmallGradientsAreNotLostBesideLargeOnes) {
  // 1 + 2^-10 has no place in bfloat16: rounded on the way, the sum would stay at 1.
  const auto x = at::full({1, 32}, 0x1p-10).to(at::kBFloat16);
  auto weight = at::ones({32, 32}, at::kBFloat16).requires_grad_();
  weight.mutable_grad() = at::ones({32, 32}, at::kFloat);
  kernels::linear(x, weight).sum().backward();
  EXPECT_TRUE(at::equal(weight.grad(), at::full({32, 32}, 1 + 0x1p-10)));
}

TEST(GradientSink, LinearCrossEntropyAddsInFloat32) {
  at::manual_seed(2);
  const auto hidden = at::randn({70, 32}).to(at::kBFloat16);
  auto weight = (at::randn({300, 32}) * 0.1).to(at::kBFloat16).requires_grad_();
  const auto targets = at::randint(300, {70}, at::kLong);
  const auto sink = at::full({300, 32}, 100.f);
  linear_cross_entropy(hidden, weight, targets, {.weight_gradient = sink}).backward();
  const auto exact = weight.detach().to(at::kDouble).requires_grad_();
  linear_cross_entropy_reference(hidden.to(at::kDouble), exact, targets).backward();
  // At 100 a bfloat16 steps by 0.5, more than any of these gradients; the logits' are rounded.
  EXPECT_LT(relative_distance(sink - 100, exact.grad()), 5e-3);
}

/// Gradients of two backwards: `unwritten`: into memory of NaN that is said to hold nothing, else into zeros.
Tensors gradients_of(const SinkCase& c, bool unwritten) {
  Tensors leaves, gradients;
  for (const auto& x : c.inputs) {
    leaves.push_back(x.detach().clone().requires_grad_());
    leaves.back().mutable_grad() = at::full_like(x, unwritten && leaves.size() > 1 ? NAN : 0);
    if (unwritten && leaves.size() > 1) set_unwritten(leaves.back().grad());
  }
  for (int pass = 0; pass < 2; ++pass) {
    const auto y = c.ours(leaves);
    (y.dim() == 0 ? y : y.sin().sum()).backward();
  }
  for (const auto& leaf : leaves) gradients.push_back(leaf.grad());
  return gradients;
}

TEST(GradientSink, WhatIsUnwrittenIsWrittenByTheFirstAndAddedToByTheNext) {
  auto all = cases();
  const auto targets = at::randint(40, {36}, at::kLong);
  for (const int64_t chunk_rows : {5, 100}) {
    all.push_back({"head",
                   [=](const Tensors& t) {
                     return linear_cross_entropy(
                         t[0].reshape({-1, 48}), t[1], targets,
                         {.weight_gradient = t[1].grad(), .chunk_rows = chunk_rows});
                   },
                   {},
                   {all[0].inputs[0], at::randn({40, 48}) * 0.1}});
  }
  all.push_back({"head of no rows",
                 [](const Tensors& t) {
                   return linear_cross_entropy(t[0].reshape({-1, 48}), t[1],
                                               at::empty({0}, at::kLong),
                                               {.weight_gradient = t[1].grad()});
                 },
                 {},
                 {at::empty({0, 48}), at::randn({40, 48})}});
  for (const auto& c : all) {
    const auto got = gradients_of(c, true), want = gradients_of(c, false);
    for (size_t i = 0; i < got.size(); ++i) {
      EXPECT_TRUE(at::equal(got[i], want[i])) << c.name << " " << i;
    }
  }
}

TEST(GradientSink, AnUnwrittenGradientIsZeroBesideOthers) {
  const auto first = at::full({3}, NAN), second = at::ones({3}), third = at::full({3}, NAN);
  set_unwritten(first), set_unwritten(third);
  EXPECT_TRUE(adds_to({first, second}));
  EXPECT_TRUE(at::equal(first, at::zeros({3})));
  EXPECT_TRUE(at::equal(second, at::ones({3})));
  EXPECT_TRUE(adds_to(first));
  set_unwritten(first);
  EXPECT_TRUE(adds_to(first.detach()));  // another tensor
  EXPECT_FALSE(adds_to({first, third}));
  EXPECT_TRUE(adds_to({first, third}));  // what the caller wrote
}

// What LibTorch does itself with such a parameter: operators without a sink keep the buffer, too.
TEST(GradientSink, AutogradKeepsTheBufferOfAnotherDtype) {
  auto weight = at::ones({8}, at::kBFloat16).requires_grad_();
  const auto buffer = at::zeros({8}, at::kFloat);
  weight.mutable_grad() = buffer;
  for (int i = 0; i < 2; ++i) (weight * 3).sum().backward();
  EXPECT_TRUE(weight.grad().is_alias_of(buffer));
  EXPECT_TRUE(at::equal(buffer, at::full({8}, 6.f)));
}

TEST(GradientSink, OnlyWhereItFits) {
  auto weight = at::ones({4, 4}, at::kBFloat16).requires_grad_();
  EXPECT_FALSE(gradient_sink(weight).defined());
  weight.mutable_grad() = at::zeros({4, 4}, at::kFloat);
  EXPECT_TRUE(gradient_sink(weight).is_same(weight.grad()));
  EXPECT_FALSE(gradient_sink(weight * 2).defined());  // no leaf
  weight.mutable_grad() = at::zeros({4, 8}, at::kFloat).narrow(1, 0, 4);
  EXPECT_FALSE(gradient_sink(weight).defined());  // not contiguous
  auto wide = at::ones({4}).requires_grad_();
  wide.mutable_grad() = at::zeros({4}, at::kBFloat16);
  EXPECT_FALSE(gradient_sink(wide).defined());  // narrower than the parameter
}

}  // namespace
}  // namespace tessera::autograd
