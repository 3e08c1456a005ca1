#include "tessera/offload/space.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <random>
#include <thread>

#include "tessera/base/error.h"
#include "tessera/base/page_buffer.h"
#include "tessera/offload/testing.h"
#include "tessera/offload/tune.h"
#include "tests/support/temporary_folder.h"

namespace tessera::offload {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

class SpaceTest : public ::testing::TestWithParam<bool> {
 protected:
  const testing::TemporaryFolder temporary_;
  const fs::path folder_ = temporary_.path();

  static constexpr int64_t kBlock = 16 << 10, kBytes = 20 * kBlock;

  SpaceOptions options(Fault fault = nullptr) const {
    SpaceOptions options{.paths = {folder_ / "a", folder_ / "b", folder_ / "c"},
                         .block_bytes = kBlock,
                         .queue_depth = 3,
                         .any_file_system = true,
                         .timeout_seconds = 20,
                         .rank = 7,
                         .use_uring = GetParam()};
    if (fault) options.wrap_queue = with_fault(fault);
    return options;
  }

  static PageBuffer noise(int64_t bytes, unsigned seed) {
    PageBuffer memory(bytes);
    std::mt19937 random(seed);
    for (auto& byte : memory.bytes()) byte = static_cast<std::byte>(random());
    return memory;
  }

  static bool same(const PageBuffer& a, const PageBuffer& b) {
    return std::memcmp(a.bytes().data(), b.bytes().data(), a.bytes().size()) == 0;
  }

  /// What becomes of a write of all and a read of it.
  static std::string error_of(Space& space, const PageBuffer& written) {
    const PageBuffer found(kBytes);
    try {
      space.wait(space.write(0, written.bytes()));
      space.wait(space.read(0, found.bytes()));
    } catch (const SystemError& error) {
      return error.what();
    }
    return same(written, found) ? "" : "other bytes";
  }
};

TEST_P(SpaceTest, WhatIsWrittenIsReadInAnyOrderOverAllFolders) {
  Space space(kBytes, options());
  const auto a = noise(5 * kBlock + 4096, 1), b = noise(3 * kBlock, 2);
  const auto first = space.write(2 * kBlock, a.bytes());
  const auto second = space.write(10 * kBlock, b.bytes());
  space.wait(second), space.wait(first);
  const PageBuffer a_found(5 * kBlock + 4096), b_found(3 * kBlock);
  const auto reads = {space.read(10 * kBlock, b_found.bytes()),
                      space.read(2 * kBlock, a_found.bytes())};
  for (const auto& ticket : reads) space.wait(ticket);
  EXPECT_TRUE(same(a, a_found) && same(b, b_found));
  EXPECT_EQ(space.bytes_of_block(7 * kBlock), 4096);  // the last of a
  EXPECT_EQ(space.bytes_of_block(8 * kBlock), 0);
  const auto counters = space.counters();
  EXPECT_EQ(counters.written_bytes, 8 * kBlock + 4096);
  EXPECT_EQ(counters.read_bytes, counters.written_bytes);
  for (const auto* name : {"a", "b", "c"}) EXPECT_TRUE(fs::is_empty(folder_ / name));
}

TEST_P(SpaceTest, WhatWasNeverWrittenIsZeroAndIsNotRead) {
  Space space(kBytes, options());
  const auto memory = noise(kBytes, 3);
  space.wait(space.read(0, memory.bytes()));
  for (const auto byte : memory.bytes()) ASSERT_EQ(byte, std::byte{0});
  EXPECT_EQ(space.counters().read_bytes, 0);
}

TEST_P(SpaceTest, ShortReadsAndWritesGoOnWhereTheyEnded) {
  int64_t num_short = 0;
  Space space(kBytes, options([&](const Operation& operation, Outcome& outcome) {
                if (operation.bytes < kBlock) return;
                ++num_short;
                outcome.result = operation.writes ? 4096 : 9000;  // no whole page: rounded down
              }));
  const auto memory = noise(kBytes, 4);
  EXPECT_EQ(error_of(space, memory), "");
  EXPECT_EQ(num_short, 2 * kBytes / kBlock);
}

TEST_P(SpaceTest, InterruptionsAreNoFailures) {
  std::map<int64_t, int> seen;
  Space space(kBytes, options([&](const Operation& operation, Outcome& outcome) {
                if (++seen[operation.offset] % 3 != 0) outcome.result = -EAGAIN;
              }));
  const auto memory = noise(kBytes, 5);
  EXPECT_EQ(error_of(space, memory), "");
}

TEST_P(SpaceTest, FailuresNameRankFolderAndOffset) {
  // Block 4 is the second of folder b.
  for (const auto& [code, text] :
       {std::pair(EIO, "Input/output error"), std::pair(ENOSPC, "No space left on device"),
        std::pair(ENODEV, "No such device")}) {
    for (const bool writes : {true, false}) {
      int place = 0;
      Space space(kBytes, options([&, code = code](const Operation& operation, Outcome& outcome) {
                    if (operation.writes == writes && operation.offset == kBlock && ++place == 2)
                      outcome.result = -code;
                  }));
      const auto memory = noise(kBytes, 6);
      const auto error = error_of(space, memory);
      EXPECT_THAT(error, AllOf(HasSubstr("rank 7: offload: "), HasSubstr(writes ? "write" : "read"),
                               HasSubstr(" of 16384 bytes at 16384 of the scratch file in " +
                                         folder_.string()),
                               HasSubstr(text)));
      EXPECT_EQ(error_of(space, memory), error);  // it stays so
    }
  }
}

TEST_P(SpaceTest, AWriteThatNeverGetsOnIsNamed) {
  Space space(kBytes, options([](const Operation&, Outcome& outcome) { outcome.result = 0; }));
  EXPECT_THAT(error_of(space, noise(kBytes, 7)), HasSubstr("only 0 bytes were moved"));
}

TEST_P(SpaceTest, OtherBytesThanWereWrittenAreFound) {
  Space space(kBytes, options([](const Operation& operation, const Outcome&) {
                if (!operation.writes && operation.offset == 2 * kBlock)
                  operation.data[100] ^= std::byte{1};
              }));
  EXPECT_THAT(error_of(space, noise(kBytes, 8)), HasSubstr("checksums differ"));
}

TEST_P(SpaceTest, ADriveThatDoesNotAnswerHasADeadline) {
  auto given =
      options([](const Operation&, Outcome& outcome) { outcome.result = FaultyQueue::kNever; });
  given.timeout_seconds = 0.3;
  Space space(kBytes, given);
  EXPECT_THAT(error_of(space, noise(kBytes, 9)), HasSubstr("no answer in 0.3 s"));
}

TEST_P(SpaceTest, WhatSomebodyWaitsForIsReadBeforeWhatIsReadAhead) {
  const auto memory = noise(kBytes, 10);
  const PageBuffer found(kBytes), found_ahead(kBytes);
  for (const bool both_are_needed : {false, true}) {
    std::atomic<bool> open = false;
    std::atomic<int64_t> read_ahead = 0;
    Space needed(kBytes, options([&](const Operation& operation, const Outcome&) {
                   while (!operation.writes && !open) std::this_thread::yield();
                 }));
    Space ahead(kBytes, options([&](const Operation& operation, const Outcome&) {
                  if (!operation.writes) ++read_ahead;
                }));
    needed.wait(needed.write(0, memory.bytes()));
    std::thread waiting([&] { needed.wait(needed.read(0, found.bytes())); });
    while (!needed.is_waited_for()) std::this_thread::yield();
    ahead.wait(ahead.write(0, memory.bytes()));  // a write goes on
    const auto ticket = ahead.read(0, found_ahead.bytes());
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    EXPECT_EQ(read_ahead, 0);
    if (both_are_needed) ahead.wait(ticket);
    open = true;
    waiting.join();
    while (!ahead.is_done(ticket)) std::this_thread::yield();
    EXPECT_EQ(read_ahead, kBytes / kBlock);
    EXPECT_TRUE(same(memory, found) && same(memory, found_ahead));
  }
}

TEST_P(SpaceTest, BlocksAreWholePages) {
  auto given = options();
  given.block_bytes = 5000;
  EXPECT_THROW(Space(kBytes, given), UserError);
}

INSTANTIATE_TEST_SUITE_P(Ways, SpaceTest, ::testing::Bool(), [](const auto& info) {
  return std::string(info.param ? "uring" : "threads");
});

TEST(Tune, AMeasurementMovesWhatItSaysThroughTheMemoryThatItMayUse) {
  const testing::TemporaryFolder folder;
  const SpaceOptions options{.paths = {folder.path() / "a", folder.path() / "b"},
                             .block_bytes = 64 << 10,
                             .any_file_system = true};
  for (const int64_t bytes : {1, 100000, 5 << 20}) {
    const auto speed = measure(options, bytes, 1 << 20);
    EXPECT_GT(speed.read, 0);
    EXPECT_GT(speed.write, 0);
    EXPECT_GT(speed.both, 0);
    EXPECT_GT(speed.moved_bytes, 0);
  }
}

}  // namespace
}  // namespace tessera::offload
