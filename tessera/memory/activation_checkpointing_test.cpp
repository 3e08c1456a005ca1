#include "tessera/memory/activation_checkpointing.h"

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "tessera/kernels/cpu/memory.h"
#include "tessera/kernels/linear.h"
#include "tessera/memory/testing.h"
#include "tests/support/temporary_folder.h"

namespace tessera::memory {
namespace {

using torch::Tensor;

constexpr int64_t kBatch = 2, kSeqLen = 6;

Tensor make_input(const BlockShape& shape) {
  torch::manual_seed(3);
  return torch::randn({kBatch, kSeqLen, shape.dim});
}

/// The gradients of all parameters (undefined ones included) and of `x`.
std::vector<Tensor> gradients(const std::vector<Block>& blocks, const Tensor& x) {
  std::vector<Tensor> list;
  for (const auto& block : blocks) {
    for (const auto& parameter : block->parameters()) list.push_back(parameter.grad());
  }
  list.push_back(x.grad());
  return list;
}

void expect_same_bits(const std::vector<Tensor>& actual, const std::vector<Tensor>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    ASSERT_EQ(actual[i].defined(), expected[i].defined()) << i;
    if (!actual[i].defined()) continue;
    EXPECT_TRUE(torch::equal(actual[i], expected[i])) << i;
  }
}

using Use = std::function<void(std::vector<Block>& blocks, const Tensor& x)>;

void forward_backward(std::vector<Block>& blocks, const Tensor& x) {
  run_blocks(blocks, x).square().sum().backward();
}

/// `use` of two blocks and an input leaves the same gradients, and the generator in the same state,
/// with checkpointing as without.
void expect_as_plain(const CheckpointOptions& options, const Use& use, const BlockShape& shape = {},
                     bool input_needs_gradient = true) {
  auto plain = make_blocks(2, shape), checkpointed = make_blocks(2, shape);
  checkpoint_blocks(hookables(checkpointed), options);
  const auto x = make_input(shape).requires_grad_(input_needs_gradient);
  const auto same_x = x.detach().clone().requires_grad_(input_needs_gradient);
  torch::manual_seed(11);
  use(plain, x);
  const auto next = torch::rand({4});
  torch::manual_seed(11);
  use(checkpointed, same_x);
  expect_same_bits({torch::rand({4})}, {next});
  expect_same_bits(gradients(checkpointed, same_x), gradients(plain, x));
}

class CheckpointTest : public ::testing::TestWithParam<CheckpointOptions> {};

TEST_P(CheckpointTest, GradientsAreThoseOfThePlainModule) {
  expect_as_plain(GetParam(), forward_backward);
}

TEST_P(CheckpointTest, DropoutDrawsTheSameNumbersAgain) {
  expect_as_plain(GetParam(), forward_backward, {.dropout = 0.3});
}

TEST_P(CheckpointTest, MicroBatchesAddUpInGradientsThatAreThere) {
  expect_as_plain(GetParam(),
                  [](auto& blocks, const Tensor& x) {
                    for (auto& block : blocks) {
                      for (auto& parameter : block->parameters()) {
                        parameter.mutable_grad() = torch::zeros_like(parameter);
                      }
                    }
                    for (int micro_batch = 0; micro_batch < 3; ++micro_batch)
                      forward_backward(blocks, x);
                  },
                  {.dropout = 0.3});
}

TEST_P(CheckpointTest, InputWithoutAGradient) {
  expect_as_plain(GetParam(), forward_backward, {.dropout = 0.3}, /*input_needs_gradient=*/false);
}

TEST_P(CheckpointTest, TwoCallsInOneGraph) {
  expect_as_plain(GetParam(), [](auto& blocks, const Tensor& x) {
    forward_backward(blocks, run_blocks(blocks, x));
  });
}

TEST_P(CheckpointTest, GraphKeptForAnotherBackward) {
  expect_as_plain(GetParam(),
                  [](auto& blocks, const Tensor& x) {
                    const auto loss = run_blocks(blocks, x).square().sum();
                    loss.backward({}, /*retain_graph=*/true);
                    loss.backward();
                  },
                  {.dropout = 0.3});
}

TEST_P(CheckpointTest, FrozenPartsKeepNoGradient) {
  expect_as_plain(GetParam(), [](auto& blocks, const Tensor& x) {
    for (auto& parameter : blocks[0]->parameters()) parameter.requires_grad_(false);
    blocks[1]->q->weight.requires_grad_(false);
    forward_backward(blocks, x);
  });
}

TEST_P(CheckpointTest, FrozenModuleWithoutAGradientToPassOnIsPlain) {
  auto blocks = make_blocks(1, {});
  checkpoint_blocks(hookables(blocks), GetParam());
  for (auto& parameter : blocks[0]->parameters()) parameter.requires_grad_(false);
  EXPECT_FALSE(run_blocks(blocks, make_input({})).requires_grad());
}

TEST_P(CheckpointTest, NothingIsKeptWithoutGradMode) {
  auto plain = make_blocks(2, {}), checkpointed = make_blocks(2, {});
  checkpoint_blocks(hookables(checkpointed), GetParam());
  const auto x = make_input({}).requires_grad_();
  const torch::NoGradGuard no_grad;
  const auto y = run_blocks(checkpointed, x);
  EXPECT_FALSE(y.requires_grad());
  expect_same_bits({y}, {run_blocks(plain, x)});
}

TEST_P(CheckpointTest, BackwardOnAnotherThread) {
  expect_as_plain(GetParam(),
                  [](auto& blocks, const Tensor& x) {
                    torch::manual_seed(11);
                    const auto loss = run_blocks(blocks, x).square().sum();
                    std::thread([&] { loss.backward(); }).join();
                  },
                  {.dropout = 0.3});
}

TEST_P(CheckpointTest, BackwardAfterAutocastEnded) {
  expect_as_plain(GetParam(), [](auto& blocks, const Tensor& x) {
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
    at::autocast::set_autocast_enabled(at::kCPU, true);
    const auto loss = run_blocks(blocks, x).square().sum();
    at::autocast::set_autocast_enabled(at::kCPU, false);
    at::autocast::clear_cache();
    EXPECT_EQ(loss.scalar_type(), at::kFloat);
    loss.backward();
  });
}

TEST_P(CheckpointTest, NestedInEachOther) {
  for (const auto mode : {CheckpointMode::full, CheckpointMode::selective}) {
    auto plain = make_blocks(1, {.dropout = 0.3}), nested = make_blocks(1, {.dropout = 0.3});
    checkpoint_blocks(hookables(nested), GetParam());
    for (nn::Hookable* inner : std::initializer_list<nn::Hookable*>{
             nested[0]->q.get(), nested[0]->norm2.get(), nested[0]->gate.get()}) {
      checkpoint(*inner, {.mode = mode});
    }
    const auto x = make_input({}).requires_grad_();
    const auto same_x = x.detach().clone().requires_grad_();
    torch::manual_seed(11);
    forward_backward(plain, x);
    torch::manual_seed(11);
    forward_backward(nested, same_x);
    expect_same_bits(gradients(nested, same_x), gradients(plain, x));
  }
}

TEST_P(CheckpointTest, ChangingAnArgumentBeforeBackwardIsNoticed) {
  auto blocks = make_blocks(1, {});
  checkpoint_blocks(hookables(blocks), GetParam());
  auto x = make_input({}).requires_grad_() * 1;
  const auto y = run_blocks(blocks, x).sum();
  x.mul_(2);
  if (GetParam().offload) {
    y.backward();  // what waits elsewhere is a copy
  } else {
    EXPECT_THROW(y.backward(), c10::Error);
  }
}

TEST_P(CheckpointTest, HooksOfTheModuleRunOncePerCallThoseInsideInTheRecomputationToo) {
  auto blocks = make_blocks(1, {});
  std::string log;
  const auto watch = [&log](nn::Hookable& module, const std::string& name) {
    module.add_hooks({.before_forward = [&log, name] { log += name + ">"; },
                      .after_forward = [&log](bool follows) { log += follows ? "! " : ". "; },
                      .before_backward = [&log, name] { log += name + "< "; },
                      .after_backward = [&log, name] { log += "<" + name + " "; }});
  };
  watch(*blocks[0], "block"), watch(*blocks[0]->down, "down");
  checkpoint_blocks(hookables(blocks), GetParam());
  const auto y = run_blocks(blocks, make_input({}).requires_grad_()).sum();
  EXPECT_EQ(log, "block>down>. ! ");
  log.clear();
  y.backward();
  EXPECT_EQ(log, "block< down>! down< <down <block ");
}

TEST_P(CheckpointTest, SecondDerivativesAndChosenInputsAreRefused) {
  auto blocks = make_blocks(1, {});
  checkpoint_blocks(hookables(blocks), GetParam());
  const auto x = make_input({}).requires_grad_();
  const auto y = run_blocks(blocks, x).sum();
  EXPECT_THROW(torch::autograd::grad({y}, {x}, {}, /*retain_graph=*/true), c10::ValueError);
  EXPECT_THROW(y.backward({}, /*retain_graph=*/true, /*create_graph=*/true), c10::ValueError);
}

std::shared_ptr<ActivationStore> drives() {
  const testing::TemporaryFolder folder;
  return drive_store(small_stack(folder.path()));
}

INSTANTIATE_TEST_SUITE_P(
    Modes, CheckpointTest,
    ::testing::Values(
        CheckpointOptions{}, CheckpointOptions{.mode = CheckpointMode::full, .every_k = 2},
        CheckpointOptions{.drop_last_product = true},
        CheckpointOptions{.drop_last_product = true, .offload = drives()},
        CheckpointOptions{.mode = CheckpointMode::feed_forward},
        CheckpointOptions{.mode = CheckpointMode::feed_forward, .drop_last_product = true},
        CheckpointOptions{.mode = CheckpointMode::selective},
        CheckpointOptions{.mode = CheckpointMode::selective, .drop_last_product = true},
        CheckpointOptions{.offload = drives()},
        CheckpointOptions{.mode = CheckpointMode::full, .every_k = 2, .offload = drives()},
        CheckpointOptions{.mode = CheckpointMode::feed_forward, .offload = drives()},
        CheckpointOptions{.mode = CheckpointMode::selective, .offload = drives()},
        CheckpointOptions{
            .mode = CheckpointMode::selective, .drop_last_product = true, .offload = drives()}),
    [](const auto& info) -> std::string {
      const auto& options = info.param;
      std::string name = options.mode == CheckpointMode::full           ? "Full"
                         : options.mode == CheckpointMode::feed_forward ? "FeedForward"
                                                                        : "Selective";
      if (options.every_k > 1) name += "EverySecond";
      if (options.drop_last_product) name += "WithoutTheLast";
      return options.offload ? name + "OnDrives" : name;
    });

/// Any arguments: x * scale, plus shift if there is one, backwards if asked.
struct MixedImpl : nn::Hookable {
  MixedImpl() { weight = register_parameter("weight", torch::full({3}, 2.0f)); }
  Tensor forward(const Tensor& x, double scale, const Tensor& shift, const Tensor& index) {
    const auto y = (x * weight * scale).exp().index_select(0, index);
    return shift.defined() ? y + shift : y;
  }
  Tensor weight;
};
using Mixed = nn::Hooked<MixedImpl>;

TEST(CheckpointArguments, MayBeUndefinedIntegersOrNoTensors) {
  for (const bool with_shift : {false, true}) {
    std::vector<std::vector<Tensor>> results;
    for (const auto mode : {CheckpointMode::none, CheckpointMode::full}) {
      Mixed module;
      checkpoint(*module, {.mode = mode});
      const auto x = torch::tensor({0.1f, 0.2f, 0.3f}, torch::requires_grad());
      const auto shift = with_shift ? torch::ones({2}, torch::requires_grad()) : Tensor();
      const auto y = module(x, 0.5, shift, torch::tensor({2, 0}));
      y.square().sum().backward();
      results.push_back({y.detach(), x.grad(), module->weight.grad()});
      if (with_shift) results.back().push_back(shift.grad());
    }
    expect_same_bits(results[1], results[0]);
  }
}

/// Does `change` to what it computes or is given.
struct ChangingImpl : nn::Hookable {
  explicit ChangingImpl(std::function<Tensor(const Tensor& x, const Tensor& weight)> body_)
      : body(std::move(body_)) {
    weight = register_parameter("weight", torch::eye(3));
  }
  Tensor forward(const Tensor& x) { return body(x, weight); }
  std::function<Tensor(const Tensor&, const Tensor&)> body;
  Tensor weight;
};
using Changing = nn::Hooked<ChangingImpl>;

TEST(CheckpointRefuses, ChangesInPlace) {
  const auto x = torch::ones({2, 3}, torch::requires_grad());
  Changing product([](const Tensor& x, const Tensor& w) { return kernels::linear(x, w).add_(1); });
  checkpoint(*product, {.mode = CheckpointMode::selective});
  EXPECT_THROW(product(x), c10::ValueError);
  Changing argument([](const Tensor& x, const Tensor& w) {
    const torch::NoGradGuard no_grad;
    return Tensor(x).add_(1) * w;
  });
  checkpoint(*argument);
  EXPECT_THROW(argument(torch::ones({3, 3}, torch::requires_grad())), c10::ValueError);
}

TEST(CheckpointRefuses, ARecomputationOfAnotherKind) {
  for (const int products : {1, 3}) {
    int calls = 0;
    Changing module([&](Tensor x, const Tensor& w) {
      for (int i = 0; i < (calls == 0 ? 2 : products); ++i) x = kernels::linear(x, w);
      ++calls;
      return x;
    });
    checkpoint(*module, {.mode = CheckpointMode::selective});
    const auto y = module(torch::ones({2, 3}, torch::requires_grad())).sum();
    EXPECT_THROW(y.backward(), c10::Error);
  }
}

TEST(CheckpointRefuses, OptionsThatCannotTakeEffect) {
  auto blocks = make_blocks(1, {});
  EXPECT_THROW(checkpoint(*blocks[0], {.every_k = 2}), c10::ValueError);
  EXPECT_THROW(checkpoint_blocks(hookables(blocks), {.every_k = 0}), c10::ValueError);
  EXPECT_THROW(checkpoint(*blocks[0], {.mode = CheckpointMode::none, .drop_last_product = true}),
               c10::ValueError);
  EXPECT_THROW(checkpoint(*blocks[0], {.mode = CheckpointMode::none, .offload = pinned_store()}),
               c10::ValueError);
  nn::LanguageModelHead head(4, 8);
  EXPECT_THROW(checkpoint(*head), c10::ValueError);
  checkpoint(*blocks[0], {.offload = pinned_store()});
  EXPECT_THROW(checkpoint(*blocks[0]), c10::ValueError);                               // twice
  EXPECT_THROW(run_blocks(blocks, make_input({}).requires_grad_()), c10::ValueError);  // no CUDA
}

TEST(CheckpointSelective, ProductsAreNotComputedAgain) {
  int calls = 0;
  Changing module([&](const Tensor& x, const Tensor& w) {
    // What the second run multiplies differs, so its product would, too.
    return kernels::linear(x * ++calls, w).exp();
  });
  checkpoint(*module, {.mode = CheckpointMode::selective});
  const auto x = torch::ones({2, 3}, torch::requires_grad());
  module(x).sum().backward();
  EXPECT_EQ(calls, 2);
  EXPECT_TRUE(torch::allclose(x.grad(), torch::full({2, 3}, 2 * std::exp(1.0f))));
}

TEST(CheckpointSelective, AMissingProductThatIsNeededShowsAsNaN) {
  for (const auto mode : {CheckpointMode::selective, CheckpointMode::full}) {
    Changing module([](const Tensor& x, const Tensor& w) { return kernels::linear(x, w).exp(); });
    checkpoint(*module, {.mode = mode, .drop_last_product = true});
    const auto x = torch::ones({2, 3}, torch::requires_grad());
    module(x).sum().backward();
    EXPECT_TRUE(x.grad().isnan().all().item<bool>());
  }
}

// A checkpointed module that ends another one.
TEST(CheckpointFull, NestedWithoutTheLastProductOfEither) {
  Changing inner([](const Tensor& x, const Tensor& w) {
    return x + kernels::linear(kernels::linear(x, w).exp(), w);
  });
  Changing outer(
      [&](const Tensor& x, const Tensor& w) { return inner(kernels::linear(x, w).exp()); });
  const auto gradient = [&] {
    const auto x = torch::ones({2, 3}, torch::requires_grad());
    outer(x).sum().backward();
    return x.grad();
  };
  const auto plain = gradient();
  checkpoint(*inner, {.drop_last_product = true});
  checkpoint(*outer, {.drop_last_product = true});
  EXPECT_TRUE(torch::equal(gradient(), plain));
}

/// Takes and gives tensors in many forms, and leaves a part of the loss in a member.
struct ManyImpl : nn::Hookable {
  ManyImpl() { weight = register_parameter("weight", torch::linspace(0.5, 1.5, 4)); }
  std::tuple<Tensor, std::vector<Tensor>> forward(const std::vector<Tensor>& x,
                                                  const std::optional<Tensor>& shift) {
    const auto scores = (x[0] * weight).softmax(-1);
    auxiliary = nn::add_output(scores.square().sum() * weight.sum());
    return {kernels::linear(scores, x[1] * weight, {}), {x[1] * scores, x[0] + *shift * weight}};
  }
  Tensor weight, auxiliary;
};

TEST(Checkpoint, OfAModuleWithTensorsInManyForms) {
  for (const auto mode : {CheckpointMode::none, CheckpointMode::full, CheckpointMode::selective}) {
    for (const bool all : {true, false}) {  // else the added output alone
      std::vector<Tensor> expected;
      for (const bool checkpointed : {false, true}) {
        nn::Hooked<ManyImpl> module;
        if (checkpointed) checkpoint(*module, {.mode = mode});
        torch::manual_seed(3);
        const auto x = torch::randn({2, 4}, torch::requires_grad());
        const auto y = torch::randn({3, 4}, torch::requires_grad());
        const auto shift = torch::randn({2, 4}, torch::requires_grad());
        auto loss = [&] {
          const auto [product, others] =
              module(std::vector{x, y.slice(0, 0, 2)}, std::optional(shift));
          const auto rest = product.sin().sum() + others[0].square().sum() + others[1].pow(3).sum();
          return all ? rest + 0.5 * module->auxiliary : module->auxiliary;
        }();
        loss.backward();
        const std::vector<Tensor> found{x.grad(), y.grad(), shift.grad(), module->weight.grad()};
        if (checkpointed) {
          expect_same_bits(found, expected);
        } else {
          expected = found;
        }
      }
    }
  }
}

/// Returns one tensor twice, its own buffer, and a view that no graph knows.
struct OddImpl : nn::Hookable {
  OddImpl() {
    weight = register_parameter("weight", torch::linspace(0.5, 1.5, 4));
    mean = register_buffer("mean", torch::full({4}, 0.25));
  }
  std::vector<Tensor> forward(const Tensor& x) {
    const auto y = x * weight;
    const torch::NoGradGuard no_grad;
    return {y, y, mean, weight, y.view({-1})};
  }
  Tensor weight, mean;
};

TEST(Checkpoint, OfAModuleThatReturnsWhatIsNotItsOwn) {
  for (const auto mode : {CheckpointMode::full, CheckpointMode::selective}) {
    std::vector<Tensor> expected;
    for (const bool checkpointed : {false, true}) {
      nn::Hooked<OddImpl> module;
      if (checkpointed) checkpoint(*module, {.mode = mode});
      const auto x = torch::tensor({1.0f, -2.0f, 3.0f, 0.5f}).requires_grad_();
      auto results = module(x);
      results[0].mul_(2);  // both of them, and the view
      auto loss = (results[0] * results[1]).sum() + (results[2] * results[3]).sum() +
                  results[4].detach().sum();
      loss.backward();
      EXPECT_FALSE(module->mean.requires_grad());
      EXPECT_TRUE(module->weight.is_leaf());
      const std::vector<Tensor> found{x.grad(), module->weight.grad()};
      if (checkpointed) {
        for (size_t i = 0; i < found.size(); ++i) {
          EXPECT_TRUE(torch::allclose(found[i], expected[i])) << i << found[i] << expected[i];
        }
      } else {
        expected = found;
      }
    }
  }
}

/// Keeps its state in a member instead of taking it as an argument.
struct CellImpl : nn::Hookable {
  CellImpl() { weight = register_parameter("weight", torch::ones({4})); }
  Tensor forward(const Tensor& x) { return (x * weight + state).tanh(); }
  Tensor weight, state = torch::zeros({4});
};

TEST(Checkpoint, RefusesAStateThatLeadsBackToItself) {
  nn::Hooked<CellImpl> module;
  checkpoint(*module);
  const auto x = torch::ones({4}, torch::requires_grad());
  const auto y = module(x);
  module->state = y;
  EXPECT_THROW(y.sum().backward(), c10::ValueError);
}

struct MovesImpl : nn::Hookable {
  MovesImpl() { weight = register_parameter("weight", torch::ones({4})); }
  Tensor forward(std::unique_ptr<Tensor> x) { return *x * weight; }
  Tensor forward(const std::unique_ptr<Tensor>& x, bool) { return *x * weight; }
  Tensor weight;
};

TEST(Checkpoint, RefusesAForwardThatTakesItsArgumentAway) {
  nn::Hooked<MovesImpl> module;
  checkpoint(*module);
  EXPECT_THROW(module(std::make_unique<Tensor>(torch::ones({4}))), c10::ValueError);
  module(std::make_unique<Tensor>(torch::ones({4})), true).sum().backward();
  EXPECT_TRUE(torch::equal(module->weight.grad(), torch::ones({4})));
}

struct InPlaceImpl : nn::Hookable {
  InPlaceImpl() { weight = register_parameter("weight", torch::ones({4})); }
  Tensor forward(Tensor x) { return x.relu_() * weight; }
  Tensor weight;
};

TEST(Checkpoint, RefusesAChangeInPlaceOfAnArgument) {
  nn::Hooked<InPlaceImpl> module;
  checkpoint(*module);
  EXPECT_THROW(module(torch::ones({4}, torch::requires_grad()) * 2), c10::ValueError);
}

/// Bytes that a forward of `count` blocks leaves behind, its result included, for each of kBatch *
/// kSeqLen tokens and each block.
double live_bytes_per_token(const CheckpointOptions& options, const BlockShape& shape) {
  kernels::install_caching_allocator();
  constexpr int64_t kBlocks = 4;
  auto blocks = make_blocks(kBlocks, shape);
  checkpoint_blocks(hookables(blocks), options);
  const auto x = make_input(shape).requires_grad_();
  const auto [cos, sin] = kernels::rotary_tables(kSeqLen, shape.head_dim());
  const auto before = kernels::allocator_stats().allocated_bytes;
  auto y = x;
  for (auto& block : blocks) y = block(y, cos, sin);
  const auto live = kernels::allocator_stats().allocated_bytes - before;
  return static_cast<double>(live) / (kBatch * kSeqLen * kBlocks);
}

TEST(CheckpointMemory, LiveBytesAfterForwardAreThoseOfTheShapes) {
  const BlockShape shape{.dim = 32, .heads = 4, .key_heads = 2, .inner = 48};
  const auto dim = shape.dim, keys = shape.key_heads * shape.head_dim(), inner = shape.inner;
  // Norm, q, k, v, attention, sum, norm, gate, up, their product, sum; a float each per norm (2)
  // and head.
  const auto none = 4.0 * (6 * dim + 2 * keys + 3 * inner + 2 + shape.heads);
  const auto full = 4.0 * dim;
  // The result of the block, and q, attention, o, down; k, v; gate, up; a float per head.
  const auto selective = 4.0 * (5 * dim + 2 * keys + 2 * inner + shape.heads);
  live_bytes_per_token({}, shape);  // and what a process makes once
  EXPECT_EQ(live_bytes_per_token({.mode = CheckpointMode::none}, shape), none);
  EXPECT_EQ(live_bytes_per_token({}, shape), full);
  EXPECT_EQ(live_bytes_per_token({.every_k = 2}, shape), (none + full) / 2);
  EXPECT_EQ(live_bytes_per_token({.mode = CheckpointMode::selective}, shape), selective);
  const auto dropped =
      live_bytes_per_token({.mode = CheckpointMode::selective, .drop_last_product = true}, shape);
  EXPECT_EQ(dropped, selective - 4.0 * dim);
  const auto feed_forward = selective - 4.0 * (dim + 2 * inner);  // without down, gate, up
  for (const bool drops : {false, true}) {                        // which is not kept all the same
    const CheckpointOptions options{.mode = CheckpointMode::feed_forward,
                                    .drop_last_product = drops};
    EXPECT_EQ(live_bytes_per_token(options, shape), feed_forward);
  }
}

TEST(CheckpointMemory, IsFreedBlockByBlockInBackward) {
  const BlockShape shape{.dim = 32, .inner = 512};
  kernels::install_caching_allocator();
  auto blocks = make_blocks(8, shape);
  checkpoint_blocks(hookables(blocks), {});
  const auto x = make_input(shape).requires_grad_();
  forward_backward(blocks, x);  // gradients are there from now on
  const auto before = kernels::allocator_stats().allocated_bytes;
  kernels::reset_peak();
  forward_backward(blocks, x);
  const auto peak = kernels::allocator_stats().peak_bytes - before;
  EXPECT_EQ(kernels::allocator_stats().allocated_bytes, before);
  // The inputs of 8 blocks, and less than two blocks' insides (3 x 512 a token) at a time.
  EXPECT_LT(peak, kBatch * kSeqLen * 4 * (9 * 32 + 2 * (3 * 512 + 6 * 32)));
}

}  // namespace
}  // namespace tessera::memory
