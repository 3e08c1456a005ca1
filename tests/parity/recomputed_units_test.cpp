// A user's own model whose units are not its checkpointed blocks: units with modules in several
// blocks, in and outside of them, in a block inside a block, called by all of them. Every
// placement, on uneven rows, is the plain net on the whole batch.
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>

#include <cmath>
#include <functional>
#include <map>
#include <string>

#include "tessera/memory/activation_checkpointing.h"
#include "tessera/nn/layers.h"
#include "tessera/parallel/data/data_parallel.h"
#include "tests/support/ranks.h"

namespace tessera::parity {
namespace {

using memory::CheckpointMode;
using parallel::Placement;
using parallel::UnitRule;
using parallel::UnitRuleKind;

constexpr int64_t kDim = 6;
constexpr double kLearningRate = 0.05;
constexpr int kSteps = 3;

struct PartImpl : nn::Hookable {
  PartImpl() : up(kDim, 9), down(9, kDim) {
    register_module("up", up), register_module("down", down);
  }
  torch::Tensor forward(const torch::Tensor& x) { return x + down(up(x).tanh()); }
  nn::Linear up, down;
};
using Part = nn::Hooked<PartImpl>;

/// Calls a part of its own and a layer that is the net's.
struct BlockImpl : nn::Hookable {
  explicit BlockImpl(nn::Linear of_the_net) : scale(kDim, kDim, false), shared(of_the_net) {
    register_module("scale", scale), register_module("part", part);
  }
  torch::Tensor forward(const torch::Tensor& x) { return scale(part(shared(x).tanh())) + x; }
  nn::Linear scale;
  Part part;
  nn::Linear shared;
};
using Block = nn::Hooked<BlockImpl>;

struct Net : nn::Hookable {
  Net() : first(4, kDim), shared(kDim, kDim), last(kDim, 3) {
    register_module("first", first), register_module("shared", shared);
    for (int i = 0; i < 3; ++i) {
      blocks.emplace_back(shared);
      register_module("block" + std::to_string(i), blocks.back());
    }
    register_module("last", last);
    torch::manual_seed(3);
    const torch::NoGradGuard no_grad;
    for (auto& parameter : parameters()) parameter.normal_(0, 0.3);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    auto hidden = shared(first(x));
    for (auto& block : blocks) hidden = block(hidden);
    return last(hidden);
  }
  nn::Linear first, shared;
  std::vector<Block> blocks;
  nn::Linear last;
};

std::map<std::string, torch::Tensor> values_of(const Net& net) {
  std::map<std::string, torch::Tensor> values;
  for (const auto& item : net.named_parameters()) values[item.key()] = item.value().detach();
  return values;
}

std::map<std::string, torch::Tensor> plain_result(const torch::Tensor& batch) {
  Net net;
  torch::optim::SGD optimizer(net.parameters(),
                              torch::optim::SGDOptions(kLearningRate).momentum(0.9));
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    (net.forward(batch).square().sum() / batch.size(0)).backward();
    optimizer.step();
  }
  return values_of(net);
}

const std::map<std::string, UnitRule> kRules{
    {"size", {.kind = UnitRuleKind::by_size, .min_num_params = 60}},
    {"name", {.kind = UnitRuleKind::by_name, .patterns = {"*.down", "block1.scale"}}},
    {"parts", {.kind = UnitRuleKind::by_name, .patterns = {"*.part"}}},
    {"model", {.kind = UnitRuleKind::whole_model}}};

using Recompute = std::function<void(Net& net)>;
const std::map<std::string, Recompute> kRecomputations{
    {"full",
     [](Net& net) {
       for (auto& block : net.blocks) memory::checkpoint(*block);
     }},
    {"selective",
     [](Net& net) {
       for (auto& block : net.blocks) {
         memory::checkpoint(*block, {.mode = CheckpointMode::selective});
       }
     }},
    {"every_second",
     [](Net& net) { memory::checkpoint(*net.blocks[0]), memory::checkpoint(*net.blocks[2]); }},
    {"nested", [](Net& net) {
       for (auto& block : net.blocks) memory::checkpoint(*block), memory::checkpoint(*block->part);
     }}};

class RecomputedUnitsTest
    : public ::testing::TestWithParam<std::tuple<int, std::string, std::string>> {};

TEST_P(RecomputedUnitsTest, EqualThePlainNet) {
  on_mesh({.shape = {.dp_shard = std::get<0>(GetParam())}}, [](const mesh::DeviceMesh& mesh) {
    const auto& [ranks, rule, recomputation] = GetParam();
    torch::manual_seed(5);
    const int64_t rows = 4 * ranks + 1, rank = mesh.axis("dp_shard").rank();
    const auto batch = torch::randn({rows, 4});
    const auto own = batch.slice(0, rank * rows / ranks, (rank + 1) * rows / ranks);
    const auto expected = plain_result(batch);
    for (const auto placement : {Placement::replicate, Placement::shard_optimizer,
                                 Placement::shard_gradients, Placement::full_shard}) {
      for (const bool reduce_each : {false, true}) {
        SCOPED_TRACE(std::to_string(static_cast<int>(placement)) + (reduce_each ? " each" : ""));
        Net net;
        kRecomputations.at(recomputation)(net);
        auto model = parallel::fully_shard(
            net, mesh, {.unit = {.placement = placement}, .gradient_divide_factor = 1},
            kRules.at(rule));
        torch::optim::SGD optimizer(model.parameters(),
                                    torch::optim::SGDOptions(kLearningRate).momentum(0.9));
        for (int step = 0; step < kSteps; ++step) {
          for (const bool last : {false, true}) {
            model.set_requires_gradient_sync(last || reduce_each);
            model.set_is_last_backward(last);
            const auto part = last ? own.slice(0, 1) : own.slice(0, 0, 1);
            (net.forward(part).square().sum() / static_cast<double>(rows)).backward();
            model.finish_backward();
            // Nothing was gathered for a forward whose backward is over.
            if (ranks > 1 && placement == Placement::full_shard) {
              EXPECT_EQ(model.memory().gathered, 0);
            }
          }
          optimizer.step();
          model.finish_step();
        }
        model.unshard();
        for (const auto& [name, value] : values_of(net)) {
          expect_close(value, expected.at(name), {.absolute = 1e-5, .relative = 1e-5});
        }
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(All, RecomputedUnitsTest,
                         ::testing::Combine(::testing::Values(1, 2, 3),
                                            ::testing::Values("size", "name", "parts", "model"),
                                            ::testing::Values("full", "selective", "every_second",
                                                              "nested")));

// Two forwards under way, each with a backward of its own: what the second one adds is not reduced
// with the first.
TEST(RecomputedUnits, TwoForwardsBeforeTheirBackwards) {
  for (const int ranks : {1, 2, 3}) {
    on_mesh({.shape = {.dp_shard = ranks}}, [&](const mesh::DeviceMesh& mesh) {
      torch::manual_seed(5);
      const int64_t rank = mesh.axis("dp_shard").rank();
      const auto batch = torch::randn({2 * ranks, 4});
      for (const auto& [name, rule] : kRules) {
        for (const auto placement :
             {Placement::replicate, Placement::shard_gradients, Placement::full_shard}) {
          SCOPED_TRACE(name);
          Net plain, net;
          plain.forward(batch).square().sum().backward();
          kRecomputations.at("every_second")(net);
          auto model = parallel::fully_shard(
              net, mesh, {.unit = {.placement = placement}, .gradient_divide_factor = 1}, rule);
          const auto one = net.forward(batch.slice(0, 2 * rank, 2 * rank + 1)).square().sum();
          const auto two = net.forward(batch.slice(0, 2 * rank + 1, 2 * rank + 2)).square().sum();
          model.set_is_last_backward(false);
          one.backward();
          model.finish_backward();
          model.set_is_last_backward(true);
          two.backward();
          model.finish_backward();
          double square = 0;
          for (const auto& parameter : plain.parameters()) {
            square += parameter.grad().square().sum().item<double>();
          }
          EXPECT_NEAR(model.gradient_norm().norm / std::sqrt(square), 1, 1e-5);
        }
      }
    });
  }
}

}  // namespace
}  // namespace tessera::parity
