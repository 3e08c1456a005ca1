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

TEST_F(HooksTest, AroundRunsInsteadOfForwardInsideTheOthers) {
  Double a;
  watch(a, "a");
  std::shared_ptr<Call> kept;
  a->add_hooks({.around = [&, this](const std::shared_ptr<Call>& call) {
    log_ += "around";
    kept = call;
    *call->inputs[0] = torch::full({3}, 5.0f);
    return call->forward() + 1;
  }});
  const auto y = a(torch::ones({3}, torch::requires_grad()), torch::Tensor(shift_ + 1));
  EXPECT_EQ(log_, "a>around>a ");
  EXPECT_TRUE(torch::equal(y, torch::full({3}, 5 * 2 + 1 + 1.0f)));
  ASSERT_EQ(kept->inputs.size(), 2u);
  *kept->inputs[1] = torch::zeros({3});  // the arguments live on with the call
  EXPECT_TRUE(torch::equal(kept->forward(), torch::full({3}, 10.0f)));
}

TEST_F(HooksTest, OneHookAroundAModuleAtMost) {
  Double a;
  const auto around = [](const std::shared_ptr<Call>& call) { return call->forward(); };
  a->add_hooks({.around = around});
  EXPECT_THROW(a->add_hooks({.around = around}), c10::ValueError);
  EXPECT_EQ(a->hooks().size(), 1u);
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
