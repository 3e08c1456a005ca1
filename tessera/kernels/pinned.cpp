#include "tessera/kernels/pinned.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <atomic>
#include <cstdio>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "tessera/kernels/cpu/memory.h"
#include "tessera/kernels/cuda/kernels.h"

namespace tessera::kernels {
namespace {

class PinnedAllocator final : public c10::Allocator {
 public:
  explicit PinnedAllocator(LockPages lock) : lock_(lock) {}

  c10::DataPtr allocate(size_t size) override {
    auto* plain = c10::GetAllocator(at::kCPU);
    if (size < kOwnPages) return plain->allocate(size);  // may share pages, which are pinned once
    if (auto kept = take(size)) return give(std::move(kept));
    auto memory = plain->allocate(size);
    if (refused_) return memory;
    if (const auto* error = lock_(memory.get(), size); error != nullptr) {
      if (!refused_.exchange(true)) {
        fmt::print(
            stderr,
            "tessera: offload: {} bytes of the host's memory could not be pinned ({}): copies "
            "are slower, and are waited for\n",
            size, error);
      }
      return memory;
    }
    return give(std::make_unique<Block>(Block{this, std::move(memory), size}));
  }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

 private:
  struct Block {
    PinnedAllocator* owner;
    c10::DataPtr memory;
    size_t size;
  };

  std::unique_ptr<Block> take(size_t size) {
    const std::lock_guard lock(mutex_);
    const auto found = free_.lower_bound(size);
    if (found == free_.end() || found->first > 2 * size) return nullptr;
    return std::move(free_.extract(found).mapped());
  }
  static c10::DataPtr give(std::unique_ptr<Block> block) {
    void* first = block->memory.get();
    return {first, block.release(), &PinnedAllocator::keep, at::kCPU};
  }
  static void keep(void* context) {
    std::unique_ptr<Block> block(static_cast<Block*>(context));
    auto& self = *block->owner;
    const std::lock_guard lock(self.mutex_);
    const size_t size = block->size;
    self.free_.emplace(size, std::move(block));
  }

  LockPages lock_;
  std::atomic<bool> refused_ = false;
  std::mutex mutex_;
  std::multimap<size_t, std::unique_ptr<Block>> free_;
};

}  // namespace

c10::Allocator* pinned_allocator(at::Device device) {
  if (!device.is_cuda()) return c10::GetAllocator(at::kCPU);
  static auto* allocator = new PinnedAllocator(lock_pages);  // tensors may outlive whatever is
  return allocator;
}

std::unique_ptr<c10::Allocator> make_pinned_allocator(LockPages lock) {
  return std::make_unique<PinnedAllocator>(lock);
}

at::Tensor empty_pinned(int64_t size, at::ScalarType dtype, at::Device device) {
  const auto bytes = static_cast<size_t>(size) * c10::elementSize(dtype);
  auto* allocator = pinned_allocator(device);
  auto storage = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), bytes,
                                                       allocator->allocate(bytes), allocator,
                                                       /*resizable=*/false);
  return at::empty({0}, dtype).set_(c10::Storage(std::move(storage)), 0, {size}, {1});
}

}  // namespace tessera::kernels
