#include "tessera/nn/kept_choices.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <vector>

#include "tessera/base/portable_numbers.h"
#include "tessera/kernels/random_bits.h"
#include "tessera/nn/dropout.h"
#include "tessera/nn/experts.h"

namespace tessera::nn {
namespace {

constexpr int64_t kRows = 3, kRowTokens = 20, kGateExperts = 4, kGateDim = 12, kGateInside = 10;
constexpr RandomContext kGateContext{.seed = 5, .step = 2, .first_row = 7};

using torch::Tensor;

void fill_normal(torch::nn::Module& module, double scale) {
  const torch::NoGradGuard no_grad;
  for (auto& parameter : module.parameters())
    parameter.copy_(scale * torch::randn(parameter.sizes()));
}

TEST(ExpertCapacity, IsDeepSpeedsFormula) {
  EXPECT_EQ(expert_capacity(64, 8, 1, 1, 4), 8);
  EXPECT_EQ(expert_capacity(64, 8, 2, 1, 4), 16);
  EXPECT_EQ(expert_capacity(64, 8, 2, 1.3, 4), 21);
  EXPECT_EQ(expert_capacity(10, 3, 1, 1, 0), 4);
  EXPECT_EQ(expert_capacity(64, 8, 1, 0.1, 4), 4);
  EXPECT_EQ(expert_capacity(64, 8, 1, 0.1, 0), 1);
  // 10 * 1.1 is above 11 in float64, and 11 in float32, as DeepSpeed computes it.
  EXPECT_EQ(expert_capacity(80, 8, 1, 1.1, 0), 11);
  EXPECT_EQ(expert_capacity(64, 8, 1, 1e300, 0), 65);
}

/// The gates of DeepSpeed's sharded_moe.py for one sequence of scores [S, E], with masks and cumulative sums over
/// all tokens and experts: what each expert's result counts in each token, [S, E].
struct DenseGate {
  int64_t top_k = 1, capacity = 1;
  DropPolicy policy = DropPolicy::probs;
  bool normalise = true;
  Tensor drawn = {};  ///< of DropPolicy::random, [S, E]

  Tensor operator()(const Tensor& gates) const {
    const auto best = std::get<1>(gates.topk(top_k, 1));
    std::vector<Tensor> masks;
    for (int64_t j = 0; j < top_k; ++j) {
      masks.push_back(at::one_hot(best.select(1, j), kGateExperts).to(torch::kBool));
    }
    const auto mask = at::stack(masks).any(0);
    const auto kept =
        mask.logical_and(policy == DropPolicy::choice ? by_choice(masks) : by_column(gates, mask));
    auto weights = gates * kept;
    if (!normalise) return weights;
    return weights / weights.sum(1, /*keepdim=*/true).clamp_min(1.2e-7);
  }

 private:
  Tensor by_column(const Tensor& gates, const Tensor& mask) const {
    if (policy == DropPolicy::position) return mask.cumsum(0).le(capacity);
    const auto& values = policy == DropPolicy::random ? drawn : gates;
    const auto rows = std::get<1>(values.detach()
                                      .masked_fill(mask.logical_not(), -1)
                                      .topk(std::min(capacity, gates.size(0)), 0));
    return at::zeros_like(mask).scatter(0, rows, true);
  }
  Tensor by_choice(const std::vector<Tensor>& masks) const {
    auto before = at::zeros({kGateExperts}, torch::kLong);
    auto kept = at::zeros_like(masks[0]);
    for (const auto& mask : masks) {
      kept = kept.logical_or(mask.logical_and((mask.cumsum(0) + before).le(capacity)));
      before = before + mask.sum(0);
    }
    return kept;
  }
};

/// A sequence through all experts, weighted by a gate.
Tensor through_all(Experts& experts, const Tensor& x, const Tensor& weights) {
  auto sum = torch::zeros_like(x);
  for (int64_t e = 0; e < kGateExperts; ++e) {
    const auto matrix = [&](const char* name) {
      return experts->named_parameters()[std::to_string(e) + "." + name + ".weight"];
    };
    const auto inside =
        at::silu(x.matmul(matrix("gate_proj").t())) * x.matmul(matrix("up_proj").t());
    sum = sum + weights.select(1, e).unsqueeze(1) * inside.matmul(matrix("down_proj").t());
  }
  return sum;
}

struct Dropping {
  int64_t top_k = 1;
  DropPolicy policy = DropPolicy::probs;
  bool normalise = true;
  double factor = 0.6;
};

class DroppingRouterTest : public ::testing::TestWithParam<Dropping> {
 protected:
  DroppingRouterTest() {
    torch::manual_seed(11), fill_normal(*experts, 0.3), fill_normal(*router, 1);
    x = torch::randn({kRows, kRowTokens, kGateDim}).requires_grad_();
    router->training.capacity = {
        .factor = GetParam().factor, .least = 0, .policy = GetParam().policy};
  }
  std::vector<Tensor> leaves() {
    auto all = experts->parameters();
    all.push_back(x), all.push_back(router->weight);
    return all;
  }
  /// Of what DropPolicy::random draws, for all tokens.
  Tensor drawn() const {
    const kernels::DropoutKey key{
        .seed = kGateContext.seed, .step = kGateContext.step, .layer = name_key("router.drop")};
    const auto first = kGateContext.first_row * kRowTokens * kGateExperts;
    return kernels::random_bits(at::arange(first, first + kRows * kRowTokens * kGateExperts), key)
        .to(torch::kDouble)
        .view({kRows, kRowTokens, kGateExperts});
  }
  Router router{kGateDim, RouterOptions{.num_experts = kGateExperts,
                                        .top_k = GetParam().top_k,
                                        .normalise = GetParam().normalise}};
  Experts experts{ExpertsOptions{
      .num_experts = kGateExperts, .dim = kGateDim, .ffn_dim = kGateInside, .names = {}}};
  Tensor x;
};

TEST_P(DroppingRouterTest, EqualsDenseMasksForwardAndBackward) {
  const auto& gate = GetParam();
  const RandomScope scope(kGateContext);
  const DenseGate dense{
      .top_k = gate.top_k,
      .capacity = expert_capacity(kRowTokens, kGateExperts, gate.top_k, gate.factor, 0),
      .policy = gate.policy,
      .normalise = gate.normalise};
  std::vector<Tensor> rows;
  int64_t dropped = 0;
  for (int64_t b = 0; b < kRows; ++b) {
    const auto scores = x[b].matmul(router->weight.t()).softmax(1);
    auto own = dense;
    own.drawn = drawn()[b];
    const auto weights = own(scores);
    dropped += kRowTokens * gate.top_k - weights.count_nonzero().item<int64_t>();
    rows.push_back(through_all(experts, x[b], weights));
  }
  const auto want = at::stack(rows), got = experts(x, router(x));
  EXPECT_GT(dropped, kRows);
  EXPECT_TRUE(torch::allclose(got, want, 1e-5, 1e-6));
  const auto of_got = torch::autograd::grad({got.sin().sum()}, leaves());
  const auto of_want = torch::autograd::grad({want.sin().sum()}, leaves());
  for (size_t i = 0; i < of_got.size(); ++i) {
    const auto largest = of_want[i].abs().max().item<double>();  // 10 in one of them
    EXPECT_TRUE(torch::allclose(of_got[i], of_want[i], 1e-4, 1e-6 * std::max(1.0, largest))) << i;
  }
}

// What becomes of a sequence does not depend on those beside it.
TEST_P(DroppingRouterTest, SequencesByThemselvesAreRoutedAlike) {
  const auto run = [&](int64_t begin, int64_t end) {
    const RandomScope scope(
        RandomContext{.seed = 5, .step = 2, .first_row = kGateContext.first_row + begin});
    return router(x.slice(0, begin, end)).experts;
  };
  const auto all = run(0, kRows);
  EXPECT_TRUE(all.equal(at::cat({run(0, 1), run(1, kRows)})));
  EXPECT_TRUE(all.lt(0).any().item<bool>());
}

INSTANTIATE_TEST_SUITE_P(
    All, DroppingRouterTest,
    ::testing::Values(
        Dropping{1, DropPolicy::random, false}, Dropping{1, DropPolicy::position, false},
        Dropping{1, DropPolicy::probs, false}, Dropping{1, DropPolicy::probs, true},
        Dropping{2, DropPolicy::choice}, Dropping{2, DropPolicy::probs},
        Dropping{2, DropPolicy::position}, Dropping{2, DropPolicy::position, false, 0.3},
        Dropping{2, DropPolicy::random}, Dropping{3, DropPolicy::probs},
        Dropping{3, DropPolicy::position}, Dropping{3, DropPolicy::choice, true, 0.3}));

TEST(KeptChoices, TheEarlierOfEqualOnesStay) {
  const Choices choices{2, at::zeros({8, 1}, torch::kLong), at::full({8, 2}, 0.5)};
  for (const auto policy : {DropPolicy::probs, DropPolicy::position, DropPolicy::choice}) {
    const auto kept = kept_choices(choices, 3, policy).flatten();
    EXPECT_TRUE(kept.equal(at::tensor({1, 1, 1, 0, 1, 1, 1, 0}).to(torch::kBool)));
  }
}

class TrainingRouterTest : public ::testing::Test {
 protected:
  TrainingRouterTest() {
    torch::manual_seed(3), fill_normal(*router, 1);
    x = torch::randn({kRows, kRowTokens, kGateDim}).requires_grad_();
  }
  Tensor routed(const RandomContext& context) {
    const RandomScope scope(context);
    return router(x).experts;
  }
  Router router{kGateDim, RouterOptions{.num_experts = kGateExperts, .top_k = 2}};
  Tensor x;
};

TEST_F(TrainingRouterTest, DrawsAnewForEachStepSeedAndLayer) {
  router->training.capacity = {.factor = 0.5, .least = 0, .policy = DropPolicy::random};
  const auto before = routed(kGateContext);
  EXPECT_TRUE(before.equal(routed(kGateContext)));
  EXPECT_FALSE(before.equal(routed({.seed = 5, .step = 3, .first_row = 7})));
  EXPECT_FALSE(before.equal(routed({.seed = 6, .step = 2, .first_row = 7})));
  router->name = "another";
  EXPECT_FALSE(before.equal(routed(kGateContext)));
}

TEST_F(TrainingRouterTest, JitterIsOfTrainingAlone) {
  const auto logits = [&] {
    Tensor seen;
    router->balance = [&](const RouterCall& call, const Tensor& weights) {
      seen = call.logits;
      return weights;
    };
    router(x);
    return seen;
  };
  const auto through_all = logits();
  router->training.jitter = 0.3;
  EXPECT_THROW(router(x), c10::ValueError);  // from which numbers?
  {
    const RandomScope scope(kGateContext);
    EXPECT_FALSE(logits().equal(through_all));
    router->eval();
    EXPECT_TRUE(logits().equal(through_all));
    router->train();
  }
  const torch::NoGradGuard no_grad;
  EXPECT_TRUE(logits().equal(through_all));
}

TEST_F(TrainingRouterTest, DrawsWithTheSoftmaxOfTheLogitsThatAreLeft) {
  const auto logits = at::tensor({0.5, 1.5, -0.3, 0.1});
  {
    const torch::NoGradGuard no_grad;
    router->weight.zero_().select(1, 0).copy_(logits);
  }
  x = torch::ones({50, 400, kGateDim}).requires_grad_();
  const auto p = logits.softmax(0).to(torch::kFloat64);
  const auto shares = [&](int64_t choice) {  // of the tokens, by expert
    const auto chosen = routed(kGateContext).select(1, choice);
    return at::bincount(chosen, {}, kGateExperts).to(torch::kFloat64) / chosen.size(0);
  };
  const auto near = [](const Tensor& got, const Tensor& want) {
    EXPECT_LT((got - want).abs().max().item<double>(), 0.012) << got << want;
  };
  router->training.sampling = ExpertSampling::all;
  near(shares(0), p);
  const auto after = (p / (1 - p)).sum() - p / (1 - p);
  near(shares(1), p * after);
  router->training.sampling = ExpertSampling::but_first;
  near(shares(0), at::tensor({0., 1., 0., 0.}, torch::kFloat64));
  const auto others = p * at::tensor({1., 0., 1., 1.}, torch::kFloat64);
  near(shares(1), others / others.sum());
}

TEST_F(TrainingRouterTest, DrawsAsTheStepAndTheRowSayAndInTrainingAlone) {
  const auto plain = routed(kGateContext);
  router->training.sampling = ExpertSampling::all;
  EXPECT_THROW(router(x), c10::ValueError);  // from which numbers?
  const auto drawn = routed(kGateContext);
  EXPECT_FALSE(drawn.equal(plain));
  EXPECT_TRUE(drawn.equal(routed(kGateContext)));
  EXPECT_FALSE(drawn.equal(routed({.seed = 5, .step = 3, .first_row = 7})));
  const auto all_rows = x;
  x = all_rows.slice(0, 1);
  EXPECT_TRUE(drawn.slice(0, kRowTokens)
                  .equal(routed({.seed = 5, .step = 2, .first_row = kGateContext.first_row + 1})));
  x = all_rows;
  router->eval();
  EXPECT_TRUE(router(x).experts.equal(plain));
}

TEST_F(TrainingRouterTest, EvaluationHasItsOwnCapacity) {
  router->training.capacity = {.factor = 0.5, .least = 0, .policy = DropPolicy::random};
  router->eval();
  EXPECT_FALSE(router(x).some_dropped);
  router->training.capacity.eval_factor = 0.4;
  const auto evaluated = router(x).experts;
  router->training.capacity = {.factor = 0.4, .least = 0, .policy = DropPolicy::position};
  router->train();
  EXPECT_TRUE(evaluated.equal(router(x).experts));
  router->training.capacity.least = kRowTokens;
  EXPECT_FALSE(router(x).some_dropped);
}

}  // namespace
}  // namespace tessera::nn
