#include "tessera/nn/experts.h"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <vector>

#include "tessera/nn/low_rank.h"

namespace tessera::nn {
namespace {

constexpr int64_t kExperts = 5, kDim = 12, kInside = 20;
const ExpertsOptions kOptions{
    .num_experts = kExperts, .dim = kDim, .ffn_dim = kInside, .names = {}};

void fill(torch::nn::Module& module, double scale = 0.3) {
  const torch::NoGradGuard no_grad;
  for (auto& parameter : module.parameters())
    parameter.copy_(scale * torch::randn(parameter.sizes()));
}

torch::Tensor weight_of(Experts& experts, int64_t e, const char* matrix) {
  return experts->named_parameters()[std::to_string(e) + "." + matrix + ".weight"];
}

/// Token by token, expert by expert.
torch::Tensor plain(Experts& experts, const torch::Tensor& x, const Routing& routing) {
  const auto rows = x.view({-1, kDim});
  std::vector<torch::Tensor> results;
  for (int64_t n = 0; n < rows.size(0); ++n) {
    auto sum = torch::zeros({kDim});
    for (int64_t j = 0; j < routing.experts.size(1); ++j) {
      const auto e = routing.experts[n][j].item<int64_t>();
      const auto inside = at::silu(weight_of(experts, e, "gate_proj").mv(rows[n])) *
                          weight_of(experts, e, "up_proj").mv(rows[n]);
      sum = sum + routing.weights[n][j] * weight_of(experts, e, "down_proj").mv(inside);
    }
    results.push_back(sum);
  }
  return at::stack(results).view(x.sizes());
}

/// Of 2 sequences of 7 tokens; nobody chooses expert 3.
Routing some_routing() {
  auto scores = torch::rand({14, kExperts});
  scores.select(1, 3).fill_(-1);
  const auto best = scores.topk(2, 1);
  return {.experts = std::get<1>(best), .weights = std::get<0>(best).requires_grad_()};
}

class ExpertsTest : public ::testing::Test {
 protected:
  ExpertsTest() {
    torch::manual_seed(11), fill(*experts);
    x = torch::randn({2, 7, kDim}).requires_grad_();
  }

  std::vector<torch::Tensor> leaves(const Routing& routing) {
    auto all = experts->parameters();
    all.push_back(x), all.push_back(routing.weights);
    return all;
  }

  Experts experts{kOptions};
  torch::Tensor x;
};

TEST_F(ExpertsTest, AreThatManyFeedForwards) {
  const auto routing = some_routing();
  const auto got = experts(x, routing), want = plain(experts, x, routing);
  EXPECT_TRUE(torch::allclose(got, want, 1e-5, 1e-6));
  const auto of_got = torch::autograd::grad({got.sin().sum()}, leaves(routing));
  const auto of_want = torch::autograd::grad({want.sin().sum()}, leaves(routing), {}, {}, false,
                                             /*allow_unused=*/true);
  for (size_t i = 0; i < of_got.size(); ++i) {
    const auto expected = of_want[i].defined() ? of_want[i] : torch::zeros_like(of_got[i]);
    EXPECT_TRUE(torch::allclose(of_got[i], expected, 1e-5, 1e-5)) << i;
  }
  EXPECT_FALSE(of_want[9].defined());  // of expert 3, whose gradient is zero and not missing
}

// A weight behind a policy is not the matrix that the layer multiplies by.
TEST_F(ExpertsTest, AdaptedMatricesAreCalled) {
  auto linear = std::dynamic_pointer_cast<LinearImpl>(experts->named_modules()["1.up_proj"]);
  const auto routing = some_routing();
  const auto before = experts(x, routing);
  add_low_rank(*linear, {.rank = 3, .scale = 2});
  torch::manual_seed(11), fill(*experts);
  const auto a = experts->named_parameters()["1.up_proj.lora_A"];
  const auto b = experts->named_parameters()["1.up_proj.lora_B"];
  const auto got = experts(x, routing);
  got.sum().backward();
  EXPECT_GT(a.grad().norm().item<float>(), 0);
  {
    const torch::NoGradGuard no_grad;
    linear->weight.add_(2 * b.matmul(a));
  }
  EXPECT_TRUE(torch::allclose(got, plain(experts, x, routing), 1e-5, 1e-6));
}

// As ranks of expert parallelism hold them: the sum of what each part gives.
TEST_F(ExpertsTest, PartsAddUp) {
  const auto routing = some_routing();
  const auto want = experts(x, routing);
  auto sum = torch::zeros_like(x);
  for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{0, 2}, {2, 5}}) {
    Experts part(kOptions);
    torch::manual_seed(11), fill(*part);
    part->keep(begin, end);
    EXPECT_EQ(part->num_here(), end - begin);
    EXPECT_EQ(std::ssize(part->parameters()), 3 * (end - begin));
    part->dispatch = [begin = begin, end = end](const torch::Tensor& rows, const Routing& all,
                                                int64_t num_experts, const ExpertProducts& products,
                                                const std::function<void()>& meanwhile) {
      const auto here = all.experts.ge(begin).logical_and(all.experts.lt(end));
      // Rows of other experts go to the first one here and count nothing.
      const Routing own{.experts = all.experts.where(here, torch::full_like(all.experts, begin)),
                        .weights = all.weights * here};
      return dispatch_here(
          rows, own, num_experts,
          [&](const torch::Tensor& sorted, const torch::Tensor& counts) {
            return products(sorted, counts.narrow(0, begin, end - begin));
          },
          meanwhile);
    };
    const auto [own, beside] = part(x, routing, [](const torch::Tensor& same) { return same * 2; });
    EXPECT_TRUE(torch::equal(beside, x * 2));
    sum = sum + own;
  }
  EXPECT_TRUE(torch::allclose(sum, want, 1e-5, 1e-6));
  EXPECT_THROW(experts->keep(3, 6), c10::ValueError);
}

TEST(RouterTest, ScoresAndNormalises) {
  torch::manual_seed(2);
  const auto x = torch::randn({2, 7, kDim});
  const auto route = [&](const RouterOptions& options, bool with_bias = false) {
    Router router(kDim, options);
    torch::manual_seed(3), fill(*router, 1);
    if (with_bias) router->selection_bias = torch::tensor({0.f, 0.f, 10.f, 0.f, -10.f});
    const auto logits = x.view({-1, kDim}).matmul(router->weight.t());
    return std::pair{router(x), logits};
  };
  {
    const auto [routing, logits] = route({.num_experts = kExperts, .top_k = 2});
    const auto best = logits.topk(2, 1);
    EXPECT_TRUE(routing.experts.equal(std::get<1>(best)));
    EXPECT_TRUE(torch::allclose(routing.weights, std::get<0>(best).softmax(1), 1e-5, 1e-6));
  }
  {
    const auto [routing, logits] =
        route({.num_experts = kExperts, .top_k = 3, .normalise = false, .scale = 2.5});
    EXPECT_TRUE(torch::allclose(routing.weights, 2.5 * std::get<0>(logits.softmax(1).topk(3, 1)),
                                1e-5, 1e-6));
  }
  {
    // Chosen with the bias, weighted without.
    const auto [routing, logits] = route(
        {.num_experts = kExperts, .top_k = 2, .scores = RouterScores::sigmoid}, /*with_bias=*/true);
    EXPECT_TRUE(routing.experts.eq(2).any(1).all().item<bool>());
    EXPECT_FALSE(routing.experts.eq(4).any().item<bool>());
    const auto chosen = logits.sigmoid().gather(1, routing.experts);
    EXPECT_TRUE(torch::allclose(routing.weights, chosen / chosen.sum(1, true), 1e-5, 1e-6));
  }
  EXPECT_THROW(Router(kDim, RouterOptions{.num_experts = 2, .top_k = 3}), c10::ValueError);
}

TEST(RouterTest, IsTaughtByTheWeightsOfItsChoice) {
  torch::manual_seed(2);
  const auto x = torch::randn({1, 9, kDim});
  Router router(kDim, RouterOptions{.num_experts = kExperts, .top_k = 2});
  Experts experts(kOptions);
  fill(*router, 1), fill(*experts);
  const auto plain_weights = [&] {
    const auto logits = x.view({-1, kDim}).matmul(router->weight.t());
    const auto best = logits.topk(2, 1);
    return Routing{.experts = std::get<1>(best), .weights = std::get<0>(best).softmax(1)};
  };
  const auto got = torch::autograd::grad({experts(x, router(x)).sin().sum()}, {router->weight});
  const auto want =
      torch::autograd::grad({plain(experts, x, plain_weights()).sin().sum()}, {router->weight});
  EXPECT_TRUE(torch::allclose(got[0], want[0], 1e-4, 1e-6));
}

}  // namespace
}  // namespace tessera::nn
