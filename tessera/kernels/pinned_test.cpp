#include "tessera/kernels/pinned.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace tessera::kernels {
namespace {

int locked = 0;  // blocks
const char* count(void*, size_t) {
  ++locked;
  return nullptr;
}

constexpr size_t kKiB = 1024;

TEST(Pinned, TheSmallestBlockThatIsLargeEnoughIsUsedAgain) {
  locked = 0;
  const auto allocator = make_pinned_allocator(count);
  auto small = allocator->allocate(100 * kKiB), large = allocator->allocate(150 * kKiB);
  const void *first = small.get(), *second = large.get();
  small.clear(), large.clear();
  large = allocator->allocate(100 * kKiB);
  EXPECT_EQ(large.get(), first);
  small = allocator->allocate(101 * kKiB);
  EXPECT_EQ(small.get(), second);
  EXPECT_EQ(locked, 2);
  large.clear(), small.clear();
  const auto less = allocator->allocate(64 * kKiB);
  EXPECT_EQ(less.get(), first);
  small = allocator->allocate(70 * kKiB);  // what is left is more than twice as large
  EXPECT_EQ(locked, 3);
}

TEST(Pinned, BlocksThatSharePagesAreNot) {
  locked = 0;
  const auto allocator = make_pinned_allocator(count);
  const auto small = allocator->allocate(63 * kKiB), none = allocator->allocate(0);
  EXPECT_NE(small.get(), nullptr);
  EXPECT_EQ(locked, 0);
}

TEST(Pinned, WhereTheSystemRefusesMemoryIsPlain) {
  const auto allocator = make_pinned_allocator([](void*, size_t) { return "no more"; });
  for (int i = 0; i < 2; ++i) {
    const auto block = allocator->allocate(100 * kKiB);
    static_cast<char*>(block.get())[100 * kKiB - 1] = 1;
  }
}

TEST(Pinned, AnyThreadMayFree) {
  const auto allocator =
      make_pinned_allocator([](void*, size_t) -> const char* { return nullptr; });
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int j = 0; j < 100; ++j) {
        auto block = allocator->allocate((64 + 8 * static_cast<size_t>(j % 5)) * kKiB);
        std::thread([moved = std::move(block)] {}).join();
      }
    });
  }
  for (auto& thread : threads) thread.join();
}

TEST(Pinned, OfACpuItIsTheHostsMemory) {
  EXPECT_EQ(pinned_allocator(at::kCPU), c10::GetAllocator(at::kCPU));
  const auto numbers = empty_pinned(5, at::kBFloat16, at::kCPU);
  EXPECT_EQ(numbers.sizes(), at::IntArrayRef({5}));
  EXPECT_EQ(numbers.scalar_type(), at::kBFloat16);
}

}  // namespace
}  // namespace tessera::kernels
