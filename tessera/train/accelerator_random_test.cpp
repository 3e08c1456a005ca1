// Loops drawn at random beside the same loops in plain LibTorch. Where gradients alone are exchanged (DDP), ranks take
// other ways through the two models.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "tessera/nn/layers.h"
#include "tessera/train/accelerator.h"
#include "tests/support/accelerator.h"

namespace tessera {
namespace {

using torch::Tensor;

/// What of a net a forward uses.
struct Way {
  bool embeds = false, twice = false, scales = false, second = false;
};

struct BlockImpl : nn::Hookable {
  BlockImpl() { register_module("in", in), register_module("out", out); }
  Tensor forward(const Tensor& x) { return x + out(torch::tanh(in(x))); }
  nn::Linear in{6, 4, /*bias=*/true}, out{4, 6, /*bias=*/true};
};
struct Block : nn::Hooked<BlockImpl> {
  using nn::Hooked<BlockImpl>::Hooked;
};

struct NetImpl : nn::Hookable {
  NetImpl() {
    register_module("embed", embed), register_module("first", first);
    register_module("second", second);
    scale = register_parameter("scale", torch::empty({6}));
    const torch::NoGradGuard no_grad;
    int64_t number = 0;
    for (auto& parameter : parameters()) {
      parameter.copy_(torch::sin(torch::arange(parameter.numel(), torch::kFloat32) + 3.0 * number++)
                          .reshape(parameter.sizes()) /
                      2);
    }
  }
  Tensor forward(const Tensor& ids, const Tensor& x, const Way& way) {
    auto y = way.embeds ? x + embed(ids) : x;
    y = first(y);
    if (way.twice) y = first(y);
    if (way.second) y = second(y);
    return way.scales ? y * scale : y;
  }
  nn::Embedding embed{9, 6};
  Block first, second;
  Tensor scale;
};
struct Net : nn::Hooked<NetImpl> {
  using nn::Hooked<NetImpl>::Hooked;
};

class Draw {
 public:
  explicit Draw(uint64_t seed) : random_(seed) {}
  int below(int end) { return static_cast<int>(random_() % static_cast<uint64_t>(end)); }
  bool heads() { return below(2) == 0; }

 private:
  std::mt19937_64 random_;
};

/// A loss of one rank: which of the models it is of, through which ways, with a penalty on weights that no module is
/// called for.
struct Loss {
  int of = 0;  // 0: the first model, 1: the second, 2: both apart, 3 and 4: one behind the other
  Way first, second;
  int penalty = 0;  // on weights: 1: of the first model, 2: of the second
  int64_t data = 0;

  static Loss drawn(Draw& draw) {
    const auto way = [&] { return Way{draw.heads(), draw.heads(), draw.heads(), draw.heads()}; };
    Loss loss;
    loss.of = draw.below(5);
    loss.first = way(), loss.second = way();
    loss.penalty = std::max(0, draw.below(5) - 2);
    loss.data = draw.below(1000);
    return loss;
  }

  Tensor of_models(auto& a, auto& b) const {
    const auto x =
        torch::cos(torch::arange(18, torch::kFloat32) + static_cast<double>(data)).reshape({3, 6});
    const auto ids = (torch::arange(3) * 5 + data) % 9;
    Tensor y;
    switch (of) {
      case 0:
        y = a(ids, x, first);
        break;
      case 1:
        y = b(ids, x, second);
        break;
      case 2:
        y = a(ids, x, first) + b(ids, x, second);
        break;
      case 3:
        y = b(ids, a(ids, x, first), second);
        break;
      default:
        y = a(ids, b(ids, x, second), first);
        break;
    }
    auto loss = y.square().mean();
    if (penalty == 1) loss = loss + 0.1 * a->first->in->weight.square().sum();
    if (penalty == 2) loss = loss + 0.1 * (b->second->out->weight * b->scale.sum()).square().sum();
    return loss;
  }
};

struct Loop {
  int64_t ranks, steps = 4, micro_batches, backwards;
  bool one_optimizer, momentum;
  std::vector<Loss> losses;  // by step, micro-batch, backward, rank

  Loop(uint64_t seed, int64_t ranks, bool alike) : ranks(ranks) {
    Draw draw(seed);
    micro_batches = 1 + draw.below(3);
    backwards = 1 + draw.below(2);
    one_optimizer = draw.heads();
    momentum = draw.heads();
    for (int64_t i = 0; i < steps * micro_batches * backwards * ranks; ++i) {
      const bool as_before = alike && i % ranks > 0;
      losses.push_back(as_before ? losses.back() : Loss::drawn(draw));
      losses.back().data += i % ranks;
      if (alike) losses.back().penalty = 0;  // weights are in memory while their modules run
    }
  }
  const Loss& at(int64_t step, int64_t micro_batch, int64_t backward, int64_t rank) const {
    return losses.at(static_cast<size_t>(
        ((step * micro_batches + micro_batch) * backwards + backward) * ranks + rank));
  }
};

/// Optimizers of the two models: one of both, or one of each.
std::vector<std::unique_ptr<torch::optim::Optimizer>> optimizers(const Loop& loop, Net& a, Net& b) {
  auto all = a->parameters();
  auto others = b->parameters();
  std::vector<std::unique_ptr<torch::optim::Optimizer>> made;
  if (loop.one_optimizer) all.insert(all.end(), others.begin(), others.end());
  const auto options = torch::optim::SGDOptions(0.05).momentum(loop.momentum ? 0.8 : 0);
  made.push_back(std::make_unique<torch::optim::SGD>(all, options));
  if (!loop.one_optimizer) made.push_back(std::make_unique<torch::optim::SGD>(others, options));
  return made;
}

std::vector<Tensor> plain_result(const Loop& loop) {
  Net a, b;
  const auto all = optimizers(loop, a, b);
  for (int64_t step = 0; step < loop.steps; ++step) {
    for (int64_t i = 0; i < loop.micro_batches * loop.backwards * loop.ranks; ++i) {
      const auto& loss = loop.losses.at(
          static_cast<size_t>(step * loop.micro_batches * loop.backwards * loop.ranks + i));
      (loss.of_models(a, b) / loop.ranks).backward();
    }
    for (const auto& optimizer : all) optimizer->step(), optimizer->zero_grad();
  }
  auto result = a->parameters();
  for (const auto& parameter : b->parameters()) result.push_back(parameter);
  return result;
}

void run(const Loop& loop, Accelerator& accelerator) {
  const auto expected = plain_result(loop);
  Net a, b;
  const auto own = optimizers(loop, a, b);
  auto model = accelerator.prepare(a);
  auto other = accelerator.prepare(b);
  std::vector<PreparedOptimizer> all;
  for (const auto& optimizer : own) all.push_back(accelerator.prepare(*optimizer));
  const int rank = accelerator.process_index();
  for (int64_t step = 0; step < loop.steps; ++step) {
    for (int64_t micro_batch = 0; micro_batch < loop.micro_batches; ++micro_batch) {
      const auto backward = [&] {
        for (int64_t i = 0; i < loop.backwards; ++i) {
          accelerator.backward(loop.at(step, micro_batch, i, rank).of_models(model, other));
        }
      };
      if (micro_batch + 1 < loop.micro_batches) {
        const auto scope = accelerator.no_sync(model);
        backward();
      } else {
        backward();
      }
    }
    for (auto& optimizer : all) optimizer.step(), optimizer.zero_grad();
  }
  const auto trained = accelerator.get_state_dict(model);
  const auto trained_other = accelerator.get_state_dict(other);
  for (size_t i = 0; i < expected.size(); ++i) {
    const auto& item = i < trained.size() ? trained[i] : trained_other[i - trained.size()];
    EXPECT_TRUE(torch::allclose(item.value(), expected[i], 1e-4, 1e-5))
        << item.key() << " of model " << i / trained.size() << ", "
        << (item.value() - expected[i]).abs().max().item<double>();
  }
  accelerator.free_memory();
}

class RandomLoopsTest : public ::testing::TestWithParam<AcceleratorLayout> {};

TEST_P(RandomLoopsTest, AreThePlainOnes) {
  const auto* count = std::getenv("TESSERA_RANDOM_LOOPS");
  const uint64_t loops = count == nullptr ? 40 : std::stoull(count);
  const auto& layout = GetParam();
  on_accelerator(
      layout, {},
      [&](Accelerator& accelerator) {
        for (uint64_t seed = 0; seed < loops; ++seed) {
          SCOPED_TRACE(fmt::format("loop {}", seed));
          run(Loop(seed, layout.ranks, layout.is_sharded()), accelerator);
        }
      },
      "Block");
}
using Layout = AcceleratorLayout;
INSTANTIATE_TEST_SUITE_P(Layouts, RandomLoopsTest,
                         ::testing::Values(Layout{1, "MULTI_CPU"}, Layout{2, "MULTI_CPU"},
                                           Layout{3, "MULTI_CPU"}, Layout{2, "FULL_SHARD"},
                                           Layout{3, "FULL_SHARD"}, Layout{3, "SHARD_GRAD_OP"}));

}  // namespace
}  // namespace tessera
