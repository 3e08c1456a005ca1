#include "tests/gpu/guarded_memory.h"

#include <c10/core/CPUAllocator.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <unordered_map>

namespace tessera::testing {
namespace {

constexpr unsigned char kFill = 0xff;

/// The tensor's bytes end `slack` bytes before the guard.
struct Block {
  char* pages;
  size_t mapped, size, slack;
};

std::mutex mutex;

std::unordered_map<void*, Block>& blocks() {
  static auto* made = new std::unordered_map<void*, Block>;  // outlives every tensor
  return *made;
}

void free_block(void* data) {
  if (data == nullptr) return;
  const std::lock_guard lock(mutex);
  const auto found = blocks().find(data);
  const Block block = found->second;
  const char* end = static_cast<char*>(data) + block.size;
  if (std::any_of(end, end + block.slack,
                  [](char c) { return static_cast<unsigned char>(c) != kFill; })) {
    std::fputs("guarded memory: something was written behind the end of a tensor\n", stderr);
    std::abort();
  }
  munmap(block.pages, block.mapped);
  blocks().erase(found);
}

class GuardedAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t size) override {
    if (size == 0) return {nullptr, c10::Device(c10::kCPU)};
    const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    const size_t rounded = (size + 15) / 16 * 16;
    const size_t used = (rounded + page - 1) / page * page;
    void* pages =
        mmap(nullptr, used + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    TORCH_CHECK(pages != MAP_FAILED, "guarded memory: none left");
    auto* first = static_cast<char*>(pages);
    TORCH_CHECK(mprotect(first + used, page, PROT_NONE) == 0);
    char* data = first + used - rounded;
    std::memset(data, kFill, rounded);
    const std::lock_guard lock(mutex);
    blocks()[data] = {first, used + page, size, rounded - size};
    return {data, data, free_block, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return free_block; }
  void copy_data(void* to, const void* from, size_t count) const override {
    default_copy_data(to, from, count);
  }
};

}  // namespace

void guard_tensors() {
  static GuardedAllocator allocator;
  c10::SetCPUAllocator(&allocator, /*priority=*/100);
}

}  // namespace tessera::testing
