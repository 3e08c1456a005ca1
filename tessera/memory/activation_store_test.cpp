#include "tessera/memory/activation_store.h"

#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "tessera/kernels/cpu/memory.h"
#include "tessera/memory/activation_checkpointing.h"
#include "tessera/memory/testing.h"
#include "tests/support/late_copies.h"
#include "tests/support/temporary_folder.h"

namespace tessera::memory {
namespace {

using testing::copies_at_once;
using testing::late_copies;
using testing::Log;

class DriveStoreTest : public testing::TemporaryFolderTest {
 protected:
  DriveStoreTest() { kernels::install_caching_allocator(); }  // it counts
  const std::shared_ptr<offload::StoredStack> stack_ = small_stack(folder_);
};

TEST_F(DriveStoreTest, TensorsComeBackAsTheyWere) {
  const auto store = drive_store(stack_);
  const auto whole = torch::randn({6, 500});
  const auto halves = torch::randn({5, 40}).chunk(2, 1);
  const std::vector<torch::Tensor> tensors{
      whole,
      whole.to(torch::kBFloat16).t(),  // dense, in another order
      whole.narrow(1, 100, 50),        // a part of each row
      torch::arange(7),
      torch::empty({0}),  // int64
      torch::tensor(3.0),
      halves[0],
      halves[1]};
  const auto stored = store->put(tensors);
  for (int time = 0; time < 2; ++time) {
    const auto found = stored->tensors();
    ASSERT_EQ(found.size(), tensors.size());
    for (size_t i = 0; i < found.size(); ++i) {
      EXPECT_EQ(found[i].dtype(), tensors[i].dtype());
      EXPECT_TRUE(torch::equal(found[i], tensors[i])) << i;
    }
    EXPECT_EQ(found[1].strides(), tensors[1].strides());
    // Halves of one tensor lie beside one another again.
    EXPECT_TRUE(found[6].is_alias_of(found[7]));
    EXPECT_EQ(found[7].strides(), tensors[7].strides());
  }
}

// Eight blocks; of bytes, those of a block's input.
struct Calls {
  static constexpr int64_t kBlocks = 8, kBatch = 2, kSeqLen = 64;
  BlockShape shape{.dim = 32};
  std::vector<Block> blocks = make_blocks(kBlocks, shape);
  torch::Tensor x = torch::randn({kBatch, kSeqLen, shape.dim}).requires_grad_();
  int64_t bytes = static_cast<int64_t>(x.nbytes());

  explicit Calls(const CheckpointOptions& options) {
    checkpoint_blocks(hookables(blocks), options);
    backward();  // gradients are there from now on
  }
  torch::Tensor loss() { return run_blocks(blocks, x).square().sum(); }
  void backward() { loss().backward(); }
};

TEST_F(DriveStoreTest, WhatIsKeptTakesNoMemoryBetweenForwardAndBackward) {
  Calls calls({.offload = drive_store(stack_)});
  const auto before = kernels::allocator_stats().allocated_bytes;
  const auto moved = stack_->space().counters();
  {
    const auto y = run_blocks(calls.blocks, calls.x);
    const auto tables = 2 * Calls::kSeqLen * calls.shape.head_dim() * int64_t{sizeof(float)};
    EXPECT_EQ(kernels::allocator_stats().allocated_bytes - before,
              calls.bytes + tables);  // y, cos, sin
    y.square().sum().backward();
  }
  // But the last input is read: there are as many buffers as an input has pages.
  const auto counters = stack_->space().counters();
  EXPECT_GE(counters.read_bytes - moved.read_bytes, (Calls::kBlocks - 1) * calls.bytes);
  EXPECT_GE(counters.written_bytes - moved.written_bytes, (Calls::kBlocks - 1) * calls.bytes);
  EXPECT_EQ(kernels::allocator_stats().allocated_bytes, before);
  EXPECT_EQ(stack_->most_bytes(), Calls::kBlocks * calls.bytes);
}

TEST_F(DriveStoreTest, AGraphWithoutABackwardGivesItsPlaceBack) {
  Calls calls({.mode = CheckpointMode::selective, .offload = drive_store(stack_)});
  const auto room = stack_->space().bytes();
  const auto most = stack_->most_bytes();
  for (int i = 0; i < 5; ++i) calls.loss();
  // A backward frees what autograd saved, however long its result is held.
  const auto loss = calls.loss();
  loss.backward();
  calls.backward();
  EXPECT_EQ(stack_->space().bytes(), room);
  EXPECT_EQ(stack_->most_bytes(), most);
  EXPECT_THROW(loss.backward(), c10::Error);  // its graph is gone
}

struct PinnedStoreTest : public ::testing::Test {
  std::shared_ptr<ActivationStore> store() { return pinned_store(late_copies({"out", "in"}, log)); }
  Log log;
};

std::vector<torch::Tensor> gradients_of(const Calls& calls) {
  std::vector<torch::Tensor> gradients{calls.x.grad()};
  for (const auto& block : calls.blocks) {
    for (const auto& parameter : block->parameters()) gradients.push_back(parameter.grad());
  }
  return gradients;
}

TEST_F(PinnedStoreTest, BackwardsAreThoseOfWhatStays) {
  for (const auto mode :
       {CheckpointMode::full, CheckpointMode::feed_forward, CheckpointMode::selective}) {
    torch::manual_seed(1);
    Calls plain({.mode = mode});
    torch::manual_seed(1);
    Calls offloaded({.mode = mode, .offload = store()});
    // Twice; forwards of two micro-batches before their backwards, either first.
    for (const bool first : {true, false}) {
      for (auto* calls : {&plain, &offloaded}) {
        const auto one = calls->loss(), other = calls->loss() * 3;
        (first ? one : other).backward();
        calls->loss();  // has no backward
        (first ? other : one).backward();
      }
    }
    const auto expected = gradients_of(plain), found = gradients_of(offloaded);
    for (size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(torch::equal(found[i], expected[i]));
  }
}

TEST_F(PinnedStoreTest, ABlocksTensorsLeaveAndComeBesideItsNeighbours) {
  Calls calls({.offload = store()});
  log.clear();
  const auto loss = calls.loss();
  // Each has the next block's forward to leave; the last one stays until its backward.
  Log expected{"out"};
  for (int64_t i = 1; i < Calls::kBlocks; ++i) expected.insert(expected.end(), {"wait out", "out"});
  EXPECT_EQ(log, expected);
  log.clear();
  loss.backward();
  expected = {"wait out"};
  for (int64_t i = 1; i < Calls::kBlocks; ++i) expected.insert(expected.end(), {"in", "wait in"});
  EXPECT_EQ(log, expected);
}

TEST_F(PinnedStoreTest, ADeviceHoldsWhatLeavesAndWhatComes) {
  kernels::install_caching_allocator();
  const auto stack = store();
  const auto bytes = [] { return kernels::allocator_stats().allocated_bytes; };
  constexpr int64_t kBytes = 1 << 20;
  const auto make = [] { return std::vector<torch::Tensor>{torch::ones({kBytes / 4})}; };
  const auto before = bytes();
  auto first = stack->put(make());
  EXPECT_EQ(bytes(), before + 2 * kBytes);  // and the host's
  auto second = stack->put(make()), third = stack->put(make());
  EXPECT_EQ(bytes(), before + 4 * kBytes);
  third->tensors();  // the second is on its way
  third.reset();
  EXPECT_EQ(bytes(), before + 3 * kBytes);
  EXPECT_EQ(second->tensors()[0].sum().item<double>(), kBytes / 4.0);
  EXPECT_EQ(second->tensors()[0].sum().item<double>(), kBytes / 4.0);  // again
  second.reset();
  first.reset();       // comes, and nobody wants it
  stack->put(make());  // likewise
  const auto small = stack->put({torch::ones({1})});
  EXPECT_LT(bytes(), before + kBytes);
}

TEST_F(PinnedStoreTest, PartsOfLargerTensorsAreTheirOwn) {
  const auto stack = store();
  const auto numbers = torch::arange(12.0), parts = torch::arange(24.0).view({12, 2});
  const std::vector<torch::Tensor> given{numbers.narrow(0, 4, 3), parts.narrow(0, 6, 2).t(),
                                         parts.select(1, 1)};
  const auto first = stack->put(given), last = stack->put(given);
  for (const auto& stored : {last, first}) {  // the one is still there, the other has left
    const auto found = stored->tensors();
    for (size_t i = 0; i < given.size(); ++i) EXPECT_TRUE(torch::equal(found[i], given[i])) << i;
  }
}

TEST_F(PinnedStoreTest, NothingMayGoElsewhere) {
  const auto stack = store();
  const auto none = stack->put({}), again = stack->put({});
  EXPECT_TRUE(none->tensors().empty());
  const auto some = stack->put({torch::ones({3})}), after = stack->put({});
  EXPECT_TRUE(after->tensors().empty());
  EXPECT_EQ(some->tensors()[0].sum().item<double>(), 3);
}

TEST_F(PinnedStoreTest, AChangeWhileItLeavesIsTold) {
  const auto stack = pinned_store(copies_at_once);
  auto x = torch::ones({100});
  const auto stored = stack->put({x});
  x.add_(1);
  const auto is_told =
      ::testing::ThrowsMessage<c10::ValueError>(::testing::HasSubstr("a change in place"));
  EXPECT_THAT([&] { stored->tensors(); }, is_told);
  EXPECT_THAT([&] { stored->tensors(); }, is_told);
  EXPECT_THAT([&] { stack->put({torch::ones({1})}); }, is_told);
}

TEST_F(PinnedStoreTest, AChangeOfWhatNobodyWantsIsNoFault) {
  const auto stack = pinned_store(copies_at_once);
  auto x = torch::ones({100});
  stack->put({x});
  x.add_(1);
  EXPECT_TRUE(torch::equal(stack->put({x})->tensors()[0], x));
}

}  // namespace
}  // namespace tessera::memory
