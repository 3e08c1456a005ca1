#include "tessera/offload/buffers.h"

#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <random>

#include "tests/support/temporary_folder.h"

namespace tessera::offload {
namespace {

using Clock = std::chrono::steady_clock;

/// A drive that begins to write some milliseconds after it was asked to.
class LateWrites : public Queue {
 public:
  explicit LateWrites(std::unique_ptr<Queue> queue) : queue_(std::move(queue)) {}
  void start(const Operation& operation) override {
    if (!operation.writes) return queue_->start(operation);
    waiting_.push_back({Clock::now() + std::chrono::milliseconds(random_() % 4), operation});
  }
  std::optional<Outcome> next(std::chrono::milliseconds /*at_most*/) override {
    while (!waiting_.empty() && waiting_.front().due <= Clock::now()) {
      queue_->start(waiting_.front().operation);
      waiting_.pop_front();
    }
    return queue_->next(std::chrono::milliseconds(1));
  }
  const char* name() const override { return "late"; }

 private:
  struct Waiting {
    Clock::time_point due;
    Operation operation;
  };
  std::unique_ptr<Queue> queue_;
  std::deque<Waiting> waiting_;
  std::mt19937 random_{5};
};

class BuffersTest : public ::testing::Test {
 protected:
  static constexpr int64_t kBlock = 8 << 10, kStretches = 9;

  Stretch stretch(int64_t i) const {
    return {.begin = 2 * i * kBlock, .bytes = (1 + i % 2) * kBlock};
  }
  SpaceOptions options() const {
    return {
        .paths = {folder_.path()},
        .block_bytes = kBlock,
        .queue_depth = 4,
        .any_file_system = true,
        .timeout_seconds = 20,
        .wrap_queue = [](auto queue) { return std::make_unique<LateWrites>(std::move(queue)); }};
  }

  const testing::TemporaryFolder folder_;
};

void expect_all(std::span<const std::byte> memory, std::byte value) {
  for (const auto byte : memory) ASSERT_EQ(byte, value);
}

/// Whatever is brought, changed, written, read ahead, let go and dropped in whatever order: a stretch holds what was
/// written to it last, also while that write goes on and its memory is promised to another.
TEST_F(BuffersTest, AStretchHoldsWhatWasWrittenLast) {
  for (const int64_t count : {2, 3, 5, 8}) {
    Buffers buffers(2 * kStretches * kBlock, options(), count, 2 * kBlock);
    std::mt19937 random(static_cast<unsigned>(count));
    std::map<int64_t, std::byte> holds;  // zero at first
    std::map<int64_t, Space::Ticket> dropped;
    for (int step = 0; step < 1500; ++step) {
      const auto i = static_cast<int64_t>(random() % kStretches);
      const auto memory = buffers.bring(stretch(i));
      if (!dropped.contains(i)) expect_all(memory, holds[i]);
      if (HasFatalFailure()) FAIL() << count << " buffers, step " << step << ", stretch " << i;
      if (random() % 3 != 0) {
        holds[i] = static_cast<std::byte>(random());
        std::ranges::fill(memory, holds[i]);
        buffers.write(stretch(i));
        dropped.erase(i);
      }
      std::vector<Stretch> coming;
      for (auto next = random() % 4; next > 0; --next)
        coming.push_back(stretch(static_cast<int64_t>(random() % kStretches)));
      buffers.read_ahead(coming);
      const auto other = static_cast<int64_t>(random() % kStretches);
      if (random() % 8 == 0) buffers.let_go(stretch(other));
      if (random() % 16 == 0) {
        buffers.space().wait(buffers.drop(stretch(other)));
        dropped[other] = nullptr;
      }
      if (random() % 64 == 0) buffers.settle();
    }
    buffers.settle();
  }
}

/// While the rank computes nobody calls: what is to be read next waits for a write by itself.
TEST_F(BuffersTest, WhatIsReadAheadWaitsForTheWriteOfItsMemory) {
  Buffers buffers(2 * kStretches * kBlock, options(), 3, 2 * kBlock);
  for (int64_t i = 0; i < kStretches; ++i) {
    std::ranges::fill(buffers.room_for(stretch(i)), static_cast<std::byte>(i));
    buffers.write(stretch(i));
  }
  buffers.settle();
  for (int64_t i = 0; i < 3; ++i) {  // all buffers are being written
    buffers.bring(stretch(i));
    buffers.write(stretch(i));
  }
  buffers.read_ahead(std::vector{stretch(5)});
  const auto before = buffers.space().counters().read_bytes;
  buffers.settle();
  EXPECT_EQ(buffers.space().counters().read_bytes - before, stretch(5).bytes);
  expect_all(buffers.bring(stretch(5)), std::byte{5});
  expect_all(buffers.bring(stretch(0)), std::byte{0});
}

}  // namespace
}  // namespace tessera::offload
