#include "tessera/offload/stored_stack.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <functional>
#include <random>
#include <string>
#include <thread>

#include "tessera/base/error.h"
#include "tessera/offload/testing.h"
#include "tests/support/temporary_folder.h"

namespace tessera::offload {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Bytes = std::vector<std::byte>;

constexpr int64_t kBlock = 16 << 10;

class StoredStackTest : public ::testing::Test {
 protected:
  const testing::TemporaryFolder folder_;

  StorageOptions options(int64_t buffers, Fault fault = nullptr) const {
    StorageOptions options{.space = {.paths = {folder_.path() / "a", folder_.path() / "b"},
                                     .block_bytes = kBlock,
                                     .queue_depth = 3,
                                     .any_file_system = true,
                                     .timeout_seconds = 20,
                                     .rank = 7},
                           .host_memory = buffers * kBlock};
    if (fault) options.space.wrap_queue = with_fault(fault);
    return options;
  }

  static Bytes noise(int64_t bytes, unsigned seed) {
    Bytes memory(static_cast<size_t>(bytes));
    std::mt19937 random(seed);
    std::ranges::generate(memory, [&] { return static_cast<std::byte>(random()); });
    return memory;
  }

  static StoredStack::Entry put(StoredStack& stack, const Bytes& bytes) {
    const std::span<const std::byte> piece(bytes);
    return stack.put({&piece, 1});
  }

  static Bytes read(StoredStack& stack, const StoredStack::Entry& entry, size_t size) {
    Bytes bytes(size);
    const std::span<std::byte> piece(bytes);
    stack.read(entry, {&piece, 1});
    return bytes;
  }

  static std::string error_of(const std::function<void()>& work) {
    try {
      work();
    } catch (const std::runtime_error& error) {
      return error.what();
    }
    return "";
  }
};

struct Kept {
  Bytes bytes;
  StoredStack::Entry entry;
};

TEST_F(StoredStackTest, StringsOfAnySizeComeBackInAnyOrderAndPlacesAreReused) {
  StoredStack stack(options(/*buffers=*/5));
  std::mt19937 random(3);
  std::vector<Kept> kept;
  for (int i = 0; i < 3000; ++i) {
    const bool puts = kept.size() < 3 || (kept.size() < 20 && random() % 2 == 0);
    if (puts) {
      const int64_t sizes[] = {0,      1,          4096,
                               kBlock, kBlock + 1, static_cast<int64_t>(random() % 90000)};
      auto bytes = noise(sizes[random() % 6], random());
      auto entry = put(stack, bytes);
      kept.push_back({std::move(bytes), std::move(entry)});
      continue;
    }
    // Mostly the last one; some are read twice, some never.
    const size_t index = random() % 4 == 0 ? random() % kept.size() : kept.size() - 1;
    if (random() % 8 != 0) {
      ASSERT_EQ(read(stack, kept[index].entry, kept[index].bytes.size()), kept[index].bytes) << i;
    }
    if (random() % 8 != 0) {
      std::vector<Kept> others;
      for (size_t j = 0; j < kept.size(); ++j)
        if (j != index) others.push_back(std::move(kept[j]));
      kept = std::move(others);
    }
  }
  EXPECT_GT(stack.space().counters().read_bytes, 0);
  EXPECT_LE(stack.memory_bytes(), 5 * kBlock);
  // 20 strings have at most 6 parts; the space grows by 16.
  EXPECT_LE(stack.space().bytes(), (20 * 6 + 16) * kBlock);
  EXPECT_LE(stack.most_bytes(), 20 * 90000);
}

TEST_F(StoredStackTest, AStringIsPutAndReadInPieces) {
  StoredStack stack(options(4));
  const auto bytes = noise(100000, 1);
  const std::span<const std::byte> all(bytes);
  const std::vector<std::span<const std::byte>> pieces{all.first(0), all.first(70001),
                                                       all.subspan(70001, 0), all.subspan(70001)};
  const auto entry = stack.put(pieces);
  Bytes found(bytes.size());
  const std::span<std::byte> into(found);
  const std::vector<std::span<std::byte>> parts{into.first(5), into.subspan(5, 60000),
                                                into.subspan(60005)};
  stack.read(entry, parts);
  EXPECT_EQ(found, bytes);
  EXPECT_THROW(read(stack, entry, 99999), std::logic_error);
}

TEST_F(StoredStackTest, WhatIsStillInMemoryIsNotReadFromTheDrive) {
  StoredStack stack(options(8));
  std::vector<Kept> kept;
  for (unsigned i = 0; i < 20; ++i) {
    auto bytes = noise(kBlock, i);
    auto entry = put(stack, bytes);
    kept.push_back({std::move(bytes), std::move(entry)});
  }
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(read(stack, kept.back().entry, kBlock), kept.back().bytes);
    kept.pop_back();
  }
  EXPECT_GE(stack.space().counters().written_bytes, 12 * kBlock);  // the others may be under way
  EXPECT_EQ(stack.space().counters().read_bytes, 12 * kBlock);
  // A second step takes no more room than the first.
  const auto room = stack.space().bytes();
  for (unsigned i = 0; i < 20; ++i) kept.push_back({{}, put(stack, noise(kBlock, i))});
  EXPECT_EQ(stack.space().bytes(), room);
}

TEST_F(StoredStackTest, ReadingOneBeginsToReadThosePutBefore) {
  StoredStack stack(options(4));
  std::vector<StoredStack::Entry> kept;
  for (unsigned i = 0; i < 10; ++i) kept.push_back(put(stack, noise(kBlock, i)));
  EXPECT_EQ(read(stack, kept[5], kBlock), noise(kBlock, 5));  // none of 0 to 5 is in memory
  const auto waits_for = [&](int64_t blocks) {
    for (int i = 0; i < 1000 && stack.space().counters().read_bytes < blocks * kBlock; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    return stack.space().counters().read_bytes;
  };
  EXPECT_EQ(waits_for(3), 3 * kBlock);  // 4 and 3 have come, too
  EXPECT_EQ(read(stack, kept[4], kBlock), noise(kBlock, 4));
  EXPECT_EQ(waits_for(4), 4 * kBlock);  // and 2
}

TEST_F(StoredStackTest, StringsThatNobodyReadsGiveTheirPlaceBack) {
  StoredStack stack(options(4));
  for (int round = 0; round < 50; ++round) {
    std::vector<StoredStack::Entry> kept;
    for (unsigned i = 0; i < 10; ++i) kept.push_back(put(stack, noise(kBlock, i)));
    if (round % 2 == 0) read(stack, kept[3], kBlock);  // others are on their way when all go
  }
  EXPECT_EQ(stack.space().bytes(), 16 * kBlock);
  EXPECT_EQ(stack.most_bytes(), 10 * kBlock);
}

TEST_F(StoredStackTest, AFailureOfTheDriveNamesRankAndFolderAndEndsIt) {
  for (const bool writes : {true, false}) {
    StoredStack stack(options(4, [writes](const Operation& operation, Outcome& outcome) {
      if (operation.writes == writes) outcome.result = -EIO;
    }));
    std::vector<StoredStack::Entry> kept;
    const auto error = error_of([&] {
      for (unsigned i = 0; i < 12; ++i) kept.push_back(put(stack, noise(kBlock, i)));
      read(stack, kept.front(), kBlock);
    });
    EXPECT_THAT(error, AllOf(HasSubstr("rank 7: offload: "), HasSubstr(writes ? "write" : "read"),
                             HasSubstr(folder_.path().string()), HasSubstr("Input/output error")));
    EXPECT_EQ(error_of([&] { put(stack, noise(3 * kBlock, 1)); }), error);
  }
}

TEST_F(StoredStackTest, OtherBytesThanWereWrittenAreFound) {
  StoredStack stack(options(4, [](const Operation& operation, const Outcome&) {
    if (!operation.writes) operation.data[100] ^= std::byte{1};
  }));
  std::vector<StoredStack::Entry> kept;
  for (unsigned i = 0; i < 12; ++i) kept.push_back(put(stack, noise(kBlock, i)));
  EXPECT_THAT(error_of([&] { read(stack, kept.front(), kBlock); }), HasSubstr("checksums differ"));
}

TEST_F(StoredStackTest, ADriveThatDoesNotAnswerHasADeadline) {
  auto given =
      options(4, [](const Operation&, Outcome& outcome) { outcome.result = FaultyQueue::kNever; });
  given.space.timeout_seconds = 0.3;
  StoredStack stack(given);
  std::vector<StoredStack::Entry> kept;
  EXPECT_THAT(error_of([&] {
                for (unsigned i = 0; i < 5; ++i) kept.push_back(put(stack, noise(kBlock, i)));
              }),
              HasSubstr("no answer in 0.3 s"));
}

TEST_F(StoredStackTest, AFileThatMayNotGrowIsNamedAndKeepsWhatItHas) {
  const auto ignored = ::signal(SIGXFSZ, SIG_IGN);
  struct rlimit before {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  StoredStack stack(options(4));
  const auto first = put(stack, noise(16 * kBlock, 1));
  const struct rlimit little { .rlim_cur = 10 * kBlock, .rlim_max = before.rlim_max };
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &little), 0);
  const auto error = error_of([&] { put(stack, noise(16 * kBlock, 2)); });
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  ::signal(SIGXFSZ, ignored);
  EXPECT_THAT(error, AllOf(HasSubstr("paths: " + folder_.path().string()),
                           HasSubstr("more than this process or the file system may have")));
  EXPECT_EQ(read(stack, first, 16 * kBlock), noise(16 * kBlock, 1));
  const auto second = put(stack, noise(16 * kBlock, 2));
  EXPECT_EQ(read(stack, second, 16 * kBlock), noise(16 * kBlock, 2));
}

TEST_F(StoredStackTest, ItsMemoryIsBoundedHoweverLargeABlockIs) {
  auto given = options(2);
  StoredStack stack(given);
  EXPECT_LE(stack.memory_bytes(), 2 * kBlock);
  const auto entry = put(stack, noise(5 * kBlock, 1));
  EXPECT_EQ(read(stack, entry, 5 * kBlock), noise(5 * kBlock, 1));
  given.host_memory = 8192;
  EXPECT_EQ(error_of([&] { const StoredStack small(given); }),
            "host_memory: expected at least 12.0 KiB, got 8.0 KiB");
}

}  // namespace
}  // namespace tessera::offload
