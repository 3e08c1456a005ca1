#include "tessera/kernels/cpu/parallel.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

namespace tessera::kernels {
namespace {

/// `count` threads of LibTorch's while it lives.
struct ThreadsScope {
  explicit ThreadsScope(int count) : before(at::get_num_threads()) { at::set_num_threads(count); }
  ~ThreadsScope() { at::set_num_threads(before); }
  ThreadsScope(const ThreadsScope&) = delete;
  ThreadsScope& operator=(const ThreadsScope&) = delete;
  int before;
};

TEST(ParallelFor, ThreadsTakePartsAtTheSameTime) {
  const ThreadsScope scope(3);
  std::atomic<int> arrived = 0;
  parallel_for(0, 3, 1, [&](int64_t first, int64_t last) {
    EXPECT_EQ(last, first + 1);
    // Ends only if the three are there together.
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    ++arrived;
    while (arrived < 3 && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
  });
  EXPECT_EQ(arrived, 3);
}

TEST(ParallelFor, CoversTheRangeOnce) {
  for (const int threads : {1, 2, 3, 7}) {
    const ThreadsScope scope(threads);
    for (const int64_t count : {0, 1, 2, 5, 64, 1000}) {
      for (const int64_t grain : {1, 3, 64, 2000}) {
        std::vector<std::atomic<int>> seen(static_cast<size_t>(count));
        std::atomic<int> calls = 0;
        parallel_for(10, 10 + count, grain, [&](int64_t first, int64_t last) {
          ++calls;
          for (int64_t i = first; i < last; ++i) ++seen[static_cast<size_t>(i - 10)];
        });
        for (const auto& times : seen) EXPECT_EQ(times, 1);
        EXPECT_LE(calls, std::min<int64_t>(threads, (count + grain - 1) / grain));
      }
    }
  }
}

TEST(ParallelFor, ALoopWithinALoopStaysOnItsThread) {
  const ThreadsScope scope(2);
  std::atomic<int> wrong = 0;
  parallel_for(0, 2, 1, [&](int64_t /*first*/, int64_t /*last*/) {
    const auto outer = std::this_thread::get_id();
    parallel_for(0, 8, 1, [&](int64_t first, int64_t last) {
      if (std::this_thread::get_id() != outer || first != 0 || last != 8) ++wrong;
    });
  });
  EXPECT_EQ(wrong, 0);
}

TEST(ParallelFor, ABodysExceptionIsThrown) {
  const ThreadsScope scope(2);
  const auto run = [] {
    parallel_for(0, 2, 1, [](int64_t first, int64_t /*last*/) {
      if (first == 1) throw std::runtime_error("of the second");
    });
  };
  EXPECT_THROW(run(), std::runtime_error);
}

}  // namespace
}  // namespace tessera::kernels
