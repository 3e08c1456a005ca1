#include "tessera/autograd/shared_input.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <string>

#include "tessera/autograd/held.h"
#include "tessera/kernels/linear.h"

namespace tessera::autograd {
namespace {

using namespace kernels;  // the operators that take part

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using Log = std::vector<std::string>;

struct Watched {
  SharedInputPtr shared;
  Log* log = nullptr;
  at::Tensor weight;  // of one product
};

/// Twice x, of which products keep x alone.
struct Twice : torch::autograd::Function<Twice> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const Watched& watched) {
    hold(context, "watched", watched);
    return x * 2;
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto& watched = *held<Watched>(context, "watched");
    const auto& grad = watched.weight.grad();
    const auto note = [&](const std::string& text) {
      const bool there = grad.defined() && grad.abs().sum().item<double>() > 0;
      watched.log->push_back(text + (there ? ", weights' gradients" : ""));
    };
    note("backward");
    watched.shared->run();
    note("ran");
    return {gradients[0] * 2, at::Tensor()};
  }
};

struct Passes {
  Log log;
  at::Tensor x, first, second;
};

/// Two products of one input, forward and backward. `kept`: weights have their gradients.
void run(Passes& run, bool kept, bool x_needs_gradient = true) {
  run.log.clear();
  const auto values = [](at::IntArrayRef sizes) {
    return at::arange(at::prod(at::tensor(sizes)).item<int64_t>()).sub(5).div(7).view(sizes);
  };
  run.x = values({3, 4}).requires_grad_(x_needs_gradient);
  run.first = values({2, 4}).requires_grad_();
  run.second = values({5, 4}).requires_grad_();
  if (kept) {
    for (auto* weight : {&run.first, &run.second}) {
      weight->mutable_grad() = at::zeros_like(*weight);
    }
  }
  Watched watched;
  watched.log = &run.log;
  watched.weight = run.first;
  watched.shared = std::make_shared<SharedInput>([log = &run.log](const at::Tensor& x) {
    log->push_back("begun");
    return [log, x] {
      log->push_back("finished");
      return x.detach() * 2;
    };
  });
  const auto input = Twice::apply(run.x, watched);
  if (input.requires_grad()) share({{.input = input, .kept = run.x, .by = watched.shared}});
  const auto loss =
      kernels::linear(input, run.first).sum() + kernels::linear(input, run.second).square().sum();
  share({});
  torch::autograd::backward({loss}, variable_list());
}

void expect_gradients(const Passes& run) {
  const auto input = run.x.detach() * 2;
  const auto second = run.second.detach();
  EXPECT_TRUE(at::allclose(run.first.grad(), input.sum(0).expand({2, 4})));
  EXPECT_TRUE(at::allclose(run.second.grad(), at::linear(input, second).t().matmul(input) * 2));
  if (!run.x.requires_grad()) return;
  const auto of_input = run.first.detach().sum(0) + 2 * at::linear(input, second).matmul(second);
  EXPECT_TRUE(at::allclose(run.x.grad(), of_input * 2));
}

TEST(SharedInput, GradientsOfWeightsWaitForTheOperatorThatMadeIt) {
  Passes made;
  run(made, /*kept=*/true);
  expect_gradients(made);
  EXPECT_EQ(made.log, (Log{"begun", "backward", "finished", "ran, weights' gradients"}));
}

TEST(SharedInput, GradientsThatAutogradIsGivenDoNotWait) {
  Passes made;
  run(made, /*kept=*/false);
  expect_gradients(made);
  EXPECT_EQ(made.log,
            (Log{"begun", "finished", "backward, weights' gradients", "ran, weights' gradients"}));
}

TEST(SharedInput, InASplitBackwardTheyWaitForItsSecondPart) {
  Passes made;
  const auto deferred = std::make_shared<DeferredGradients>();
  {
    const DeferScope scope(deferred);
    run(made, /*kept=*/true);
  }
  EXPECT_EQ(made.log, (Log{"backward", "ran"}));
  deferred->run();
  expect_gradients(made);
  EXPECT_EQ(made.log, (Log{"backward", "ran", "begun", "finished"}));
}

TEST(SharedInput, WhatNeedsNoGradientItselfIsNotShared) {
  Passes made;
  run(made, /*kept=*/true, /*x_needs_gradient=*/false);
  expect_gradients(made);
  EXPECT_EQ(made.log, Log{});
}

}  // namespace
}  // namespace tessera::autograd
