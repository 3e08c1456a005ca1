#include "tessera/nn/dropout.h"

#include <gtest/gtest.h>

#include <thread>

namespace tessera::nn {
namespace {

constexpr RandomContext kContext{.seed = 5, .step = 2, .first_row = 0};

TEST(DropoutModule, RowsDropTheSameInAnyMicroBatch) {
  Dropout layer("layer", 0.3);
  const auto x = torch::randn({7, 4, 6});
  const auto forward = [&](int64_t begin, int64_t end) {
    auto context = kContext;
    context.first_row = begin;
    const RandomScope scope(context);
    return layer(x.slice(0, begin, end));
  };
  const auto whole = forward(0, 7);
  EXPECT_LT(whole.ne(0).sum().item<int64_t>(), x.numel());
  EXPECT_TRUE(whole.equal(torch::cat({forward(0, 1), forward(1, 5), forward(5, 7)})));
}

TEST(DropoutModule, StepSeedAndNameTellLayersApart) {
  const auto x = torch::ones({8, 64});
  const auto drawn = [&](const std::string& name, const RandomContext& context) {
    const RandomScope scope(context);
    return Dropout(name, 0.5)(x);
  };
  const auto first = drawn("a", kContext);
  EXPECT_TRUE(first.equal(drawn("a", kContext)));
  EXPECT_FALSE(first.equal(drawn("b", kContext)));
  EXPECT_FALSE(first.equal(drawn("a", {.seed = 6, .step = 2})));
  EXPECT_FALSE(first.equal(drawn("a", {.seed = 5, .step = 3})));
}

TEST(DropoutModule, EvaluationDropsNothing) {
  Dropout layer("layer", 0.5);
  const auto x = torch::randn({4, 4});
  {
    const torch::NoGradGuard no_grad;  // a validation pass that left the model in training mode
    EXPECT_TRUE(layer(x).is_same(x));
  }
  const RandomScope scope(kContext);
  EXPECT_FALSE(layer(x).equal(x));
  layer->eval();
  EXPECT_TRUE(layer(x).is_same(x));
}

TEST(DropoutModule, ATrainingForwardNeedsAScope) {
  Dropout layer("h.0.drop", 0.5);
  const auto x = torch::randn({4, 4});
  try {
    layer(x);
    FAIL() << "expected an error";
  } catch (const c10::ValueError& error) {
    EXPECT_EQ(std::string(error.what_without_backtrace()),
              "h.0.drop: expected a RandomScope around a training forward; make one per "
              "micro-batch, or call eval()");
  }
  EXPECT_NO_THROW(Dropout("none", 0)(x));
}

TEST(DropoutModule, ScopesNestAndBelongToTheirThread) {
  const RandomScope outer(kContext);
  {
    const RandomScope inner(RandomContext{.step = 9});
    EXPECT_EQ(RandomScope::current()->step, 9);
    std::thread([] { EXPECT_FALSE(RandomScope::current()); }).join();
  }
  EXPECT_EQ(RandomScope::current()->step, 2);
}

}  // namespace
}  // namespace tessera::nn
