#include "tessera/nn/hooked.h"

#include <gtest/gtest.h>

#include <string>

#include "tessera/nn/layers.h"

namespace tessera::nn {
namespace {

struct DoubleImpl : Hookable {
  DoubleImpl() { weight = register_parameter("weight", torch::full({3}, 2.0f)); }
  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& shift) {
    return x * weight + shift;
  }
  torch::Tensor weight;
};
using Double = Hooked<DoubleImpl>;

class HooksTest : public ::testing::Test {
 protected:
  void watch(Double& module, const std::string& name) {
    module->add_hooks({.before_forward = [=, this] { log_ += name + ">"; },
                       .after_forward = [=, this](bool) { log_ += ">" + name + " "; },
                       .before_backward = [=, this] { log_ += name + "<"; },
                       .after_backward =
                           [=, this, weight = module->weight] {
                             EXPECT_TRUE(weight.grad().defined());
                             log_ += "<" + name + " ";
                           }});
  }
  std::string log_;
  torch::Tensor shift_ = torch::zeros({3});
};

TEST_F(HooksTest, RunAroundForwardAndBackwardInOrder) {
  Double a, b;
  watch(a, "a"), watch(b, "b");
  const auto loss = b(a(torch::ones({3}, torch::requires_grad()), shift_), shift_).sum();
  EXPECT_EQ(log_, "a>>a b>>b ");
  log_.clear();
  loss.backward();
  EXPECT_EQ(log_, "b<<b a<<a ");
}

TEST_F(HooksTest, WithoutAGradientOfTheInputTheBackwardEndsWithTheWholeBackward) {
  Double a, b;
  watch(a, "a"), watch(b, "b");
  b(a(torch::ones({3}), shift_), shift_).sum().backward();
  EXPECT_EQ(log_, "a>>a b>>b b<<b a<<a ");
}

TEST_F(HooksTest, RunOncePerCallHoweverManyInputsNeedGradients) {
  Double a;
  watch(a, "a");
  const auto x = torch::ones({3}, torch::requires_grad());
  for (int call = 0; call < 2; ++call) a(x, x * 2).sum().backward();
  EXPECT_EQ(log_, "a>>a a<<a a>>a a<<a ");
}

TEST_F(HooksTest, NoBackwardHooksWithoutGradients) {
  Double a;
  watch(a, "a");
  const torch::NoGradGuard no_grad;
  a(torch::ones({3}), shift_);
  EXPECT_EQ(log_, "a>>a ");
}

TEST_F(HooksTest, ChangeNoNumber) {
  Double plain, watched;
  watch(watched, "w");
  const auto x = torch::randn({3});
  const auto x1 = x.clone().set_requires_grad(true), x2 = x.clone().set_requires_grad(true);
  plain(x1, shift_).square().sum().backward();
  watched(x2, shift_).square().sum().backward();
  EXPECT_TRUE(torch::equal(x1.grad(), x2.grad()));
  EXPECT_TRUE(torch::equal(plain->weight.grad(), watched->weight.grad()));
}

}  // namespace
}  // namespace tessera::nn
