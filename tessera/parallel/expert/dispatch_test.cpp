#include "tessera/parallel/expert/dispatch.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <csignal>
#include <map>
#include <set>
#include <string>

#include "tessera/nn/layers.h"
#include "tessera/nn/linear.h"
#include "tessera/parallel/data/data_parallel.h"
#include "tests/support/ranks.h"

namespace tessera::parallel {
namespace {

constexpr int64_t kExperts = 8, kTopK = 2, kDim = 6;

/// Experts of which each token takes two. The last expert is never chosen; whatever is chosen on a
/// rank, each rank calls all of its experts.
struct MixtureImpl : nn::Hookable {
  MixtureImpl() : router(kDim, kExperts, false) {
    register_module("router", router);
    for (int64_t e = 0; e < kExperts; ++e) {
      experts.emplace_back(kDim, kDim, true);
      register_module("expert" + std::to_string(e), experts.back());
    }
  }
  void keep(int64_t begin, int64_t end) {
    for (int64_t e = 0; e < kExperts; ++e) {
      if (e < begin || e >= end) unregister_module("expert" + std::to_string(e));
    }
    experts = {experts.begin() + begin, experts.begin() + end};
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const auto never = at::zeros({kExperts});
    never[kExperts - 1].fill_(-1e9);
    const auto [weights, chosen] = (router(x) + never).softmax(1).topk(kTopK, 1);
    const auto own = [this](const torch::Tensor& rows, const torch::Tensor& counts) {
      std::vector<torch::Tensor> results;
      int64_t begin = 0;
      for (size_t e = 0; e < experts.size(); ++e) {
        const int64_t count = counts[static_cast<int64_t>(e)].item<int64_t>();
        results.push_back(experts[e](rows.narrow(0, begin, count)).tanh());
        begin += count;
      }
      return at::cat(results);
    };
    return x + over_ranks(x, {chosen, weights}, kExperts, own, axis, {.degree = overlap_degree});
  }
  nn::Linear router;
  std::vector<nn::Linear> experts;
  mesh::Axis axis;
  int64_t overlap_degree = 1;
};
using Mixture = nn::Hooked<MixtureImpl>;

struct Net : nn::Hookable {
  Net() : first(7, kDim, true), last(kDim, 3, true) {
    register_module("first", first);
    for (const auto* name : {"mixture0", "mixture1"}) {
      mixtures.emplace_back();
      register_module(name, mixtures.back());
    }
    register_module("last", last);
    torch::manual_seed(3);
    const torch::NoGradGuard no_grad;
    for (auto& parameter : parameters()) parameter.normal_(0, 0.5);
  }
  void divide(const mesh::Axis& axis, int64_t overlap_degree) {
    const int64_t here = kExperts / axis.size();
    for (auto& mixture : mixtures) {
      mixture->keep(axis.rank() * here, (axis.rank() + 1) * here);
      mixture->axis = axis;
      mixture->overlap_degree = overlap_degree;
    }
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return last(mixtures[1](mixtures[0](first(x).tanh())));
  }
  std::vector<UnitModules> units() {
    return {{"first", {first.get()}},
            {"mixture0", {mixtures[0].get()}},
            {"mixture1", {mixtures[1].get()}},
            {"last", {last.get()}}};
  }
  nn::Linear first;
  std::vector<Mixture> mixtures;
  nn::Linear last;
};

bool is_expert(const std::string& name) { return name.find("expert") != std::string::npos; }

/// Of one rank: the sum of the losses, each parameter's gradient, and their norm.
struct Plain {
  double loss = 0, norm = 0;
  std::map<std::string, torch::Tensor> gradients;
};
Plain plain(const torch::Tensor& batch) {
  Net net;
  const auto loss = net.forward(batch).square().sum();
  loss.backward();
  Plain result{.loss = loss.item<double>()};
  for (const auto& item : net.named_parameters()) {
    result.gradients[item.key()] = item.value().grad();
    result.norm += item.value().grad().square().sum().item<double>();
  }
  result.norm = std::sqrt(result.norm);
  return result;
}

class ExpertsTest
    : public ::testing::TestWithParam<std::tuple<mesh::MeshShape, Placement, int64_t>> {};

TEST_P(ExpertsTest, LossGradientsAndNormAreThoseOfOneRank) {
  const auto& [shape, placement, degree] = GetParam();
  on_mesh({.shape = shape}, [placement = placement, degree = degree](const mesh::DeviceMesh& mesh) {
    const auto axes = DataAxes::of(mesh);
    torch::manual_seed(5);
    const int64_t ranks = axes.all.size(), rank = axes.all.rank();
    const auto batch = torch::randn({3 * ranks + 2, 7});  // few rows: some experts get none here
    const auto expected = plain(batch);

    Net net;
    net.divide(mesh.axis("ep"), degree);
    auto model = parallelise(net, net.units(), axes,
                             {.unit = {.placement = placement}, .of_experts = is_expert});
    model.set_gradient_divide_factor(1);
    const auto rows = batch.tensor_split(ranks)[static_cast<size_t>(rank)];
    auto total = at::zeros({1});
    const CollectiveCounter counter(mesh.axis("ep"));
    const auto sent = mesh.axis("ep").counters().all_to_all.bytes;
    for (const bool last : {false, true}) {  // two micro-batches, of one row and of the others
      model.set_is_last_backward(last);
      const auto loss = net.forward(last ? rows.slice(0, 1) : rows.slice(0, 0, 1)).square().sum();
      total += loss.detach();
      loss.backward();
      model.finish_backward();
    }
    if (mesh.shape().ep > 1) {
      // Two mixtures, two micro-batches; the way there and back, and both again in the backward.
      EXPECT_EQ(counter.counts().all_to_all, 16 * degree);
      EXPECT_EQ(counter.counts().all_gather, 4);
      auto bytes = at::tensor({mesh.axis("ep").counters().all_to_all.bytes - sent});
      auto tokens = at::tensor({rows.size(0)});
      mesh.axis("ep").all_reduce(tokens).wait();
      const int64_t each = tokens.item<int64_t>() * 2 * 4 * kTopK * kDim * 4 / mesh.shape().ep;
      EXPECT_LE(std::abs(bytes.item<int64_t>() - each), 16);  // whole bytes of each mean
    }
    axes.all.all_reduce(total).wait();
    EXPECT_NEAR(total.item<double>(), expected.loss, 2e-5 * expected.loss);
    EXPECT_NEAR(model.gradient_norm().norm, expected.norm, 2e-5 * expected.norm);
    for (const auto& leaf : model.named_parameters()) {
      EXPECT_TRUE(expected.gradients.contains(leaf.key())) << leaf.key();
    }
    std::map<std::string, int64_t> seen;
    const auto leaves = model.parameters();
    const auto parts = model.parts();
    for (size_t i = 0; i < parts.size(); ++i) {
      const auto& extent = parts[i].extent;
      const auto whole = expected.gradients.at(extent.name).reshape({-1});
      SCOPED_TRACE(extent.name);
      expect_close(
          parts[i].slice
              ? model.slices()[*parts[i].slice].gradient.narrow(0, parts[i].offset, extent.length)
              : at::Tensor(),
          whole.narrow(0, extent.begin, extent.length), {.absolute = 2e-5, .relative = 2e-5});
      seen[is_expert(extent.name) ? "experts" : "others"] +=
          extent.length * 1000 / parts[i].replicas;
    }
    // Together the ranks hold each number of the model once, but for replicas.
    auto sums = at::tensor({seen["experts"], seen["others"]});
    axes.all.all_reduce(sums).wait();
    Net all;
    int64_t experts = 0, others = 0;
    for (const auto& item : all.named_parameters()) {
      (is_expert(item.key()) ? experts : others) += item.value().numel() * 1000;
    }
    EXPECT_EQ(sums[0].item<int64_t>(), experts);
    EXPECT_EQ(sums[1].item<int64_t>(), others);
    std::set<std::string> without;  // the last expert's at least
    for (const auto& [name, gradient] : expected.gradients) {
      if (!gradient.any().item<bool>()) without.insert(name);
    }
    EXPECT_TRUE(without.contains("mixture0.expert7.weight"));
    const auto unused = model.parameters_without_gradient();
    EXPECT_EQ(std::set<std::string>(unused.begin(), unused.end()), without);
    EXPECT_EQ(unused.size(), without.size());
  });
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, ExpertsTest,
    ::testing::Values(
        std::tuple(mesh::MeshShape{}, Placement::full_shard, 1),
        std::tuple(mesh::MeshShape{.dp_replicate = 2, .ep = 2}, Placement::replicate, 1),
        std::tuple(mesh::MeshShape{.dp_replicate = 4, .ep = 2}, Placement::replicate, 1),
        std::tuple(mesh::MeshShape{.dp_shard = 2, .ep = 2}, Placement::shard_optimizer, 1),
        std::tuple(mesh::MeshShape{.dp_shard = 4, .ep = 2}, Placement::shard_optimizer, 1),
        std::tuple(mesh::MeshShape{.dp_shard = 4, .ep = 2}, Placement::shard_gradients, 1),
        std::tuple(mesh::MeshShape{.dp_shard = 2, .ep = 2}, Placement::full_shard, 1),
        std::tuple(mesh::MeshShape{.dp_shard = 4, .ep = 2}, Placement::full_shard, 1),
        std::tuple(mesh::MeshShape{.dp_shard = 4, .ep = 4}, Placement::full_shard, 1),
        std::tuple(mesh::MeshShape{.dp_replicate = 2, .dp_shard = 2, .ep = 2},
                   Placement::full_shard, 1),
        std::tuple(mesh::MeshShape{.dp_shard = 2, .ep = 2}, Placement::full_shard, 2),
        std::tuple(mesh::MeshShape{.dp_shard = 4, .ep = 4}, Placement::shard_gradients, 3),
        std::tuple(mesh::MeshShape{.dp_replicate = 2, .dp_shard = 4, .ep = 2},
                   Placement::shard_gradients, 1)));

// Five tokens on three ranks that have them alike: the summands and the gradients' summands add up.
TEST(Experts, PartsOfTokensAddUp) {
  const torch::Tensor x = torch::randn({5, kDim}), weights = torch::rand({5, kTopK});
  const auto experts = at::arange(5 * kTopK).remainder(kExperts).view({5, kTopK});
  const auto scaled = [](const torch::Tensor& rows, const torch::Tensor&) { return rows * 3; };
  const auto run = [&](const TokenPart& part) {
    const auto own_x = x.clone().requires_grad_(), own_weights = weights.clone().requires_grad_();
    const auto out =
        of_part(own_x, {.experts = experts, .weights = own_weights}, part,
                [&](const torch::Tensor& rows, const nn::Routing& routing) {
                  EXPECT_EQ(rows.size(0), part.parts == 1 ? 5 : (part.index == 0 ? 1 : 2));
                  return nn::dispatch_here(rows, routing, kExperts, scaled, [] {});
                });
    out.square().sum().backward();
    return std::vector{out.detach(), own_x.grad(), own_weights.grad()};
  };
  const auto whole = run({});
  auto sums = run({.index = 0, .parts = 3});
  for (int64_t index = 1; index < 3; ++index) {
    const auto part = run({.index = index, .parts = 3});
    for (size_t i = 0; i < sums.size(); ++i) sums[i] = sums[i] + part[i];
  }
  for (size_t i = 0; i < sums.size(); ++i) EXPECT_TRUE(at::equal(sums[i], whole[i])) << i;
}

// What is beside is computed once, while rows travel, and both ways: its backward lies between the start of
// the gradients' exchange and their arrival.
TEST(Experts, WhatIsBesideIsComputedWhileRowsTravel) {
  on_mesh({.shape = {.dp_shard = 2, .ep = 2}}, [](const mesh::DeviceMesh& mesh) {
    const auto& axis = mesh.axis("ep");
    const CollectiveCounter counter(axis);
    std::vector<std::string> order;
    const auto note = [&](const std::string& what) {
      order.push_back(fmt::format("{} after {}", what, counter.counts().all_to_all));
    };
    const auto noted = [&](const torch::Tensor& x, const std::string& what) {
      note(what);
      auto y = x * 2;
      y.register_hook([&note, what](const torch::Tensor&) { note("backward of " + what); });
      return y;
    };
    const auto x = at::ones({4, kDim}).requires_grad_();
    torch::Tensor beside;
    const auto y = over_ranks(
        x, {at::arange(4).remainder(2).view({4, 1}), at::ones({4, 1})}, 2,
        [&](const torch::Tensor& rows, const torch::Tensor&) { return noted(rows, "experts"); },
        axis, {.degree = 1, .meanwhile = [&] { beside = noted(x, "shared"); }});
    (y + beside).sum().backward();
    EXPECT_THAT(
        order, ::testing::ElementsAre("shared after 1", "experts after 1",
                                      "backward of experts after 3", "backward of shared after 4"));
    EXPECT_TRUE(at::equal(x.grad(), at::full({4, kDim}, 4.0)));
  });
}

// The second exchange, of results, waits for a rank that took the rows of the first.
TEST(Experts, ARankLostBetweenExchangesIsNamed) {
  const auto begin = std::chrono::steady_clock::now();
  on_mesh({.shape = {.dp_shard = 3, .ep = 3}, .killed = {1}}, [](const mesh::DeviceMesh& mesh) {
    const auto& axis = mesh.axis("ep");
    const auto products = [&](const torch::Tensor& rows, const torch::Tensor&) {
      if (axis.rank() == 1) ::raise(SIGKILL);
      return rows;
    };
    try {
      over_ranks(at::ones({3, kDim}), {at::arange(3).view({3, 1}), at::ones({3, 1})}, 3, products,
                 axis);
      FAIL() << "expected an error";
    } catch (const c10::DistError& error) {
      EXPECT_THAT(error.what(), ::testing::HasSubstr("axis ep: all_to_all"));
      EXPECT_THAT(error.what(), ::testing::HasSubstr("rank 1"));
    }
  });
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
}

TEST(Experts, ExpertsThatTheRanksCannotShareAreRefused) {
  on_mesh({.shape = {.dp_shard = 3, .ep = 3}}, [](const mesh::DeviceMesh& mesh) {
    EXPECT_THROW(over_ranks(
                     at::ones({1, kDim}), {at::zeros({1, kTopK}, at::kLong), at::ones({1, kTopK})},
                     kExperts, [](const auto& rows, const auto&) { return rows; }, mesh.axis("ep")),
                 c10::ValueError);
  });
}

}  // namespace
}  // namespace tessera::parallel
