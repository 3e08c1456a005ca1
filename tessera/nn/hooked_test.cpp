#include "tessera/nn/hooked.h"

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

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
    call->forward();
    *call->outputs[0] = *call->outputs[0] + 1;
  }});
  const auto y = a(torch::ones({3}, torch::requires_grad()), torch::Tensor(shift_ + 1));
  EXPECT_EQ(log_, "a>around>a ");
  EXPECT_TRUE(torch::equal(y, torch::full({3}, 5 * 2 + 1 + 1.0f)));
  ASSERT_EQ(kept->inputs.size(), 2u);
  *kept->inputs[1] = torch::zeros({3});  // the arguments live on with the call
  kept->forward();
  EXPECT_TRUE(torch::equal(*kept->outputs[0], torch::full({3}, 10.0f)));
}

TEST_F(HooksTest, OneHookAroundAModuleAtMost) {
  Double a;
  const auto around = [](const std::shared_ptr<Call>& call) { call->forward(); };
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

/// A result of the user's own.
struct Scores {
  torch::Tensor values;
  std::optional<torch::Tensor> mask;
  void visit_tensors(const auto& visit) { visit(values), visit(mask); }
};

/// Has a forward for each kind of result that one may return.
struct ManyImpl : Hookable {
  ManyImpl() { weight = register_parameter("weight", torch::full({3}, 2.0f)); }
  std::tuple<torch::Tensor, std::pair<torch::Tensor, int64_t>> forward(const torch::Tensor& x) {
    return {x * weight, {x + weight, 7}};
  }
  std::vector<torch::Tensor> forward(const std::vector<torch::Tensor>& x,
                                     const std::optional<torch::Tensor>& shift) {
    std::vector<torch::Tensor> all;
    for (const auto& each : x) all.push_back(each * weight + (shift ? *shift : torch::zeros({3})));
    return all;
  }
  std::map<std::string, torch::Tensor> forward(const torch::Tensor& x, const std::string& name) {
    return {{name, x * weight}, {"square", x.square()}};
  }
  Scores forward(const torch::Tensor& x, bool with_mask) {
    return {x * weight, with_mask ? std::optional(x > 0) : std::nullopt};
  }
  torch::Tensor forward(std::unique_ptr<torch::Tensor> x) { return *x * weight; }
  torch::Tensor weight;
};
using Many = Hooked<ManyImpl>;

/// Sums what each kind of call gives, weighted so that every output has a gradient of its own.
torch::Tensor use_all(Many& module, const torch::Tensor& x) {
  const auto [product, rest] = module(x);
  auto loss = product.sum() + 2 * rest.first.square().sum() + rest.second;
  for (const auto& each : module(std::vector{x, x * 2}, std::optional(x))) {
    loss = loss + each.pow(3).sum();
  }
  for (const auto& [name, value] : module(x, std::string("product"))) loss = loss + value.sum();
  const auto scores = module(x, true);
  loss = loss + (scores.values * *scores.mask).sum();
  return loss + module(std::make_unique<torch::Tensor>(x)).sum();
}

TEST_F(HooksTest, SeeTheTensorsOfAnyResultAndArgument) {
  Many plain, watched;
  int forwards = 0, backwards = 0;
  watched->add_hooks({.after_forward = [&](bool follows) { forwards += follows; },
                      .before_backward = [&] { ++backwards; },
                      .after_backward = [&] { backwards += 10; }});
  const auto x = torch::tensor({1.0f, -2.0f, 3.0f});
  const auto x1 = x.clone().set_requires_grad(true), x2 = x.clone().set_requires_grad(true);
  use_all(plain, x1).backward();
  use_all(watched, x2).backward();
  EXPECT_TRUE(torch::equal(x1.grad(), x2.grad()));
  EXPECT_TRUE(torch::equal(plain->weight.grad(), watched->weight.grad()));
  EXPECT_EQ(forwards, 5);
  EXPECT_EQ(backwards, 5 + 5 * 10);  // each once, however many outputs
}

static_assert(kTensorsAreSeen<std::tuple<torch::Tensor, std::vector<Scores>, double>>);
static_assert(!kTensorsAreSeen<std::shared_ptr<torch::Tensor>>);
static_assert(!kTensorsAreSeen<torch::TensorList>);

/// Changes its argument in place, as torch allows.
struct InPlaceImpl : Hookable {
  InPlaceImpl() { weight = register_parameter("weight", torch::full({3}, 2.0f)); }
  torch::Tensor forward(torch::Tensor x) { return x.relu_() * weight; }
  torch::Tensor weight;
};
using InPlace = Hooked<InPlaceImpl>;

TEST_F(HooksTest, AnArgumentMayBeChangedInPlace) {
  const auto run = [](InPlace& module, const torch::Tensor& x, bool of_view) {
    const auto base = x * 3;
    auto y = of_view ? base.slice(0, 0, 3) : base;
    const auto z = module(y);
    (z.square().sum() + y.pow(3).sum() + base.sin().sum()).backward();  // y was changed, too
    return base.detach();
  };
  for (const bool of_view : {false, true}) {
    InPlace plain, watched;
    watched->add_hooks({.before_forward = [] {}});
    const auto x = torch::tensor({1.0f, -2.0f, 3.0f});
    const auto x1 = x.clone().set_requires_grad(true), x2 = x.clone().set_requires_grad(true);
    EXPECT_TRUE(torch::equal(run(plain, x1, of_view), run(watched, x2, of_view)));
    EXPECT_TRUE(torch::allclose(x1.grad(), x2.grad(), 1e-6));  // sums in another order
    EXPECT_TRUE(torch::equal(plain->weight.grad(), watched->weight.grad()));
    EXPECT_THROW(watched(torch::ones({3}, torch::requires_grad())), c10::Error);  // a leaf
  }
}

/// The same tensor twice, of which the caller changes one.
struct TwiceImpl : Hookable {
  TwiceImpl() { weight = register_parameter("weight", torch::full({3}, 2.0f)); }
  std::tuple<torch::Tensor, torch::Tensor, torch::Tensor> forward(const torch::Tensor& x) {
    const auto y = x * weight;
    return {y, y, y + 1};
  }
  torch::Tensor weight;
};

TEST_F(HooksTest, OneTensorInTwoPlacesStaysOne) {
  Hooked<TwiceImpl> plain, watched;
  watched->add_hooks({.before_forward = [] {}});
  const auto run = [](Hooked<TwiceImpl>& module) {
    auto [a, b, c] = module(torch::tensor({1.0f, -2.0f, 3.0f}));
    a.mul_(3);
    (a * b + c).sum().backward();
    return module->weight.grad();
  };
  EXPECT_TRUE(torch::allclose(run(plain), run(watched)));
}

/// Leaves a part of the loss in a member.
struct GateImpl : Hookable {
  GateImpl() { weight = register_parameter("weight", torch::full({3}, 2.0f)); }
  torch::Tensor forward(const torch::Tensor& x) {
    const auto scores = (x * weight).softmax(0);
    auxiliary = add_output(scores.square().sum() * weight.square().sum());
    return x * scores;
  }
  torch::Tensor weight, auxiliary;
};
using Gate = Hooked<GateImpl>;

TEST_F(HooksTest, AnAddedOutputIsOneOfTheCalls) {
  for (const bool alone : {false, true}) {  // without the output itself
    Gate plain, watched;
    std::string log;
    watched->add_hooks(
        {.before_backward = [&] { log += "<"; }, .after_backward = [&] { log += ">"; }});
    const auto run = [&](Gate& module, const torch::Tensor& x) {
      const auto y = module(x).sum();
      (alone ? module->auxiliary : y + module->auxiliary).backward();
    };
    const auto x = torch::tensor({1.0f, -2.0f, 3.0f});
    const auto x1 = x.clone().set_requires_grad(true), x2 = x.clone().set_requires_grad(true);
    run(plain, x1), run(watched, x2);
    EXPECT_TRUE(torch::equal(x1.grad(), x2.grad()));
    EXPECT_TRUE(torch::equal(plain->weight.grad(), watched->weight.grad()));
    EXPECT_EQ(log, "<>");
  }
}

/// What forward() would change of the caller's does not compile: hooks give it copies.
struct ByReferenceImpl : Hookable {
  torch::Tensor forward(torch::Tensor& x, std::vector<torch::Tensor> cache) { return x + cache[0]; }
  torch::Tensor forward(std::vector<torch::Tensor>& cache) { return cache[0]; }
};
static_assert(kTakesValues<DoubleImpl, torch::Tensor, torch::Tensor>);
static_assert(!kTakesValues<ByReferenceImpl, torch::Tensor, std::vector<torch::Tensor>>);
static_assert(!kTakesValues<ByReferenceImpl, std::vector<torch::Tensor>>);

}  // namespace
}  // namespace tessera::nn
