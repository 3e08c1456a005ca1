#include "tessera/memory/activation_store.h"

#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include "tessera/kernels/cpu/memory.h"
#include "tessera/memory/activation_checkpointing.h"
#include "tessera/memory/testing.h"
#include "tests/support/temporary_folder.h"

namespace tessera::memory {
namespace {

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

}  // namespace
}  // namespace tessera::memory
