#include "tessera/memory/activation_store.h"

#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <utility>
#include <vector>

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

using Log = std::vector<std::string>;

/// Copies as late as a device's may be: at wait(). Until then results are NaN, sources must stay as they are, and both
/// must be held by somebody.
class LateCopies : public kernels::CopyQueue {
 public:
  LateCopies(std::string name, Log& log) : name_(std::move(name)), log_(log) {}

  void start(const at::Tensor& to, const at::Tensor& from) override {
    std::memset(to.data_ptr(), 255, to.nbytes());
    waiting_.push_back({of(to), of(from), bytes_of(of(from))});
    log_.push_back(name_);
  }

  void wait() override {
    if (!waiting_.empty()) log_.push_back("wait " + name_);
    for (const auto& [to, from, bytes] : std::exchange(waiting_, {})) {
      ASSERT_FALSE(to.storage.expired() || from.storage.expired()) << "memory was freed too early";
      EXPECT_EQ(bytes_of(from), bytes) << "a source was written while it was copied";
      std::memcpy(data_of(to), bytes.data(), bytes.size());
    }
  }

 private:
  struct Place {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    size_t begin, size;  // bytes
  };
  struct Copy {
    Place to, from;
    std::vector<char> bytes;  // not a tensor's: those are counted
  };

  static Place of(const at::Tensor& tensor) {
    return {tensor.storage().getWeakStorageImpl(),
            static_cast<size_t>(tensor.storage_offset()) * tensor.element_size(), tensor.nbytes()};
  }
  static char* data_of(const Place& place) {
    return static_cast<char*>(place.storage.lock()->mutable_data()) + place.begin;
  }
  static std::vector<char> bytes_of(const Place& place) {
    return {data_of(place), data_of(place) + place.size};
  }

  std::string name_;
  Log& log_;
  std::vector<Copy> waiting_;
};

struct PinnedStoreTest : public ::testing::Test {
  /// Calls alternate: out, then in.
  MakeCopyQueue late() {
    return [this, count = 0](at::Device) mutable {
      return std::make_unique<LateCopies>(count++ == 0 ? "out" : "in", log);
    };
  }
  std::shared_ptr<ActivationStore> store() { return pinned_store(late()); }
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

struct CopiesAtOnce : kernels::CopyQueue {
  void start(const at::Tensor& to, const at::Tensor& from) override { to.copy_(from); }
  void wait() override {}
};

TEST_F(PinnedStoreTest, AChangeWhileItLeavesIsTold) {
  const auto stack = pinned_store([](at::Device) { return std::make_unique<CopiesAtOnce>(); });
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
  const auto stack = pinned_store([](at::Device) { return std::make_unique<CopiesAtOnce>(); });
  auto x = torch::ones({100});
  stack->put({x});
  x.add_(1);
  EXPECT_TRUE(torch::equal(stack->put({x})->tensors()[0], x));
}

}  // namespace
}  // namespace tessera::memory
