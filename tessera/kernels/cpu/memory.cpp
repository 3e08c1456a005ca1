#include "tessera/kernels/cpu/memory.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <mutex>
#include <new>
#include <utility>

#include "tessera/base/page_buffer.h"

namespace tessera::kernels {
namespace {

constexpr size_t kAlignment = 64;
constexpr size_t kSlack = size_t{32} << 20;
constexpr size_t kRegion = size_t{64} << 20;
constexpr size_t kMostInRegion =
    kRegion / 4 + kPageBytes;  // of a tensor of 16 MiB, with its header

/// Stands in the 64 bytes before a tensor's data.
struct Header {
  size_t requested;
  size_t capacity;  ///< of a large block: bytes mapped, header included; 0: malloc's
  uint64_t freed_at;
};
static_assert(sizeof(Header) <= kAlignment);

Header* header_of(void* data) {
  return reinterpret_cast<Header*>(static_cast<char*>(data) - kAlignment);
}
void* data_of(Header* header) { return reinterpret_cast<char*>(header) + kAlignment; }

size_t rounded_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

void unmap(void* pages, size_t bytes) {
  // A kernel may refuse to cut a hole where a process has too many mappings; the memory goes anyway.
  if (munmap(pages, bytes) != 0) madvise(pages, bytes, MADV_DONTNEED);
}

/// Blocks of pages, next to each other in regions of huge ones: a virtual machine looks up small pages so slowly that reading a
/// matrix takes several times as long. Of what is not cut yet at most one huge page has memory; one that several
/// blocks share may keep its memory until all of them are unmapped, or until the kernel needs it.
class Regions {
 public:
  /// `bytes`, a multiple of system_page_bytes(), to be unmapped by whoever has them; null: there are none. Under the lock.
  void* cut(size_t bytes) {
    if (bytes > kMostInRegion) return map(bytes);
    if (left_ < bytes) {
      if (left_ > 0) unmap(next_, left_);
      next_ = map(kRegion);
      left_ = next_ != nullptr ? kRegion : 0;
    }
    if (left_ < bytes) return map(bytes);
    left_ -= bytes;
    return std::exchange(next_, next_ + bytes);
  }

 private:
  static std::byte* map(size_t bytes) { return map_pages(static_cast<int64_t>(bytes)); }

  std::byte* next_ = nullptr;
  size_t left_ = 0;
};

class CachingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    void* data = bytes == 0 ? nullptr : take(bytes);
    return {data, data, &CachingAllocator::give_back, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &CachingAllocator::give_back; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

  AllocatorStats stats() {
    const std::lock_guard lock(mutex_);
    return stats_;
  }
  void reset_peak() {
    const std::lock_guard lock(mutex_);
    stats_.peak_bytes = stats_.allocated_bytes;
  }
  void trim() {
    const std::lock_guard lock(mutex_);
    release_down_to(0);
  }

 private:
  static void give_back(void* data);

  void* take(size_t bytes) {
    Header* header = nullptr;
    const std::lock_guard lock(mutex_);
    if (bytes < kOwnPages) {
      header = static_cast<Header*>(
          std::aligned_alloc(kAlignment, rounded_up(bytes, kAlignment) + kAlignment));
      if (header != nullptr) {
        header->capacity = 0;
        stats_.reserved_bytes += static_cast<int64_t>(bytes);
      }
    } else {
      header = take_large(bytes);
    }
    TORCH_CHECK_WITH(OutOfMemoryError, header != nullptr, "out of host memory: asked for ", bytes,
                     " bytes with ", stats_.allocated_bytes, " in use");
    header->requested = bytes;
    stats_.allocated_bytes += static_cast<int64_t>(bytes);
    stats_.peak_bytes = std::max(stats_.peak_bytes, stats_.allocated_bytes);
    most_ever_ = std::max(most_ever_, stats_.allocated_bytes);
    return data_of(header);
  }

  /// A kept block if one fits well, else fresh pages. Under the lock.
  Header* take_large(size_t bytes) {
    const size_t capacity =
        rounded_up(bytes + kAlignment, static_cast<size_t>(system_page_bytes()));
    const auto found = free_.lower_bound(capacity);
    if (found != free_.end() && found->first - capacity <= found->first / 8) {
      Header* header = found->second;
      free_.erase(found);
      free_bytes_ -= header->capacity;
      return header;
    }
    keep_within_bound(bytes, capacity);
    auto* header = static_cast<Header*>(regions_.cut(capacity));
    if (header == nullptr) {
      release_down_to(0);
      header = static_cast<Header*>(regions_.cut(capacity));
    }
    if (header == nullptr) return nullptr;
    header->capacity = capacity;
    stats_.reserved_bytes += static_cast<int64_t>(capacity);
    ++stats_.system_calls;
    return header;
  }

  /// Makes room for `capacity` more bytes. Under the lock.
  void keep_within_bound(size_t bytes, size_t capacity) {
    const auto most = static_cast<size_t>(
        std::max(most_ever_, stats_.allocated_bytes + static_cast<int64_t>(bytes)));
    const size_t bound = most + most / 8 + kSlack;
    const size_t after = static_cast<size_t>(stats_.reserved_bytes) + capacity;
    if (after <= bound) return;
    const size_t excess = std::min(free_bytes_, after - bound);
    release_down_to(free_bytes_ - excess);
  }

  /// Unmaps the kept blocks longest unused until at most `bytes` are kept. Under the lock.
  void release_down_to(size_t bytes) {
    while (free_bytes_ > bytes) {
      const auto oldest = std::min_element(free_.begin(), free_.end(), [](auto& a, auto& b) {
        return a.second->freed_at < b.second->freed_at;
      });
      Header* header = oldest->second;
      free_.erase(oldest);
      free_bytes_ -= header->capacity;
      stats_.reserved_bytes -= static_cast<int64_t>(header->capacity);
      unmap(header, header->capacity);
    }
  }

  void keep(Header* header) {
    const std::lock_guard lock(mutex_);
    stats_.allocated_bytes -= static_cast<int64_t>(header->requested);
    if (header->capacity == 0) {
      stats_.reserved_bytes -= static_cast<int64_t>(header->requested);
      std::free(header);
      return;
    }
    header->freed_at = ++clock_;
    free_bytes_ += header->capacity;
    free_.emplace(header->capacity, header);
  }

  std::mutex mutex_;
  Regions regions_;
  std::multimap<size_t, Header*> free_;  ///< by capacity
  size_t free_bytes_ = 0;
  uint64_t clock_ = 0;
  int64_t most_ever_ = 0;  ///< of allocated_bytes
  AllocatorStats stats_;
};

/// Never destroyed: tensors in static storage may be freed after main. In static storage, not on
/// the heap.
CachingAllocator& the_allocator() {
  alignas(CachingAllocator) static char storage[sizeof(CachingAllocator)];
  static auto* allocator = ::new (static_cast<void*>(storage)) CachingAllocator;
  return *allocator;
}

void CachingAllocator::give_back(void* data) {
  if (data != nullptr) the_allocator().keep(header_of(data));
}

}  // namespace

void install_caching_allocator() {
  constexpr uint8_t kAboveDefault = 1;
  if (c10::GetCPUAllocator() != &the_allocator())
    c10::SetCPUAllocator(&the_allocator(), kAboveDefault);
}
AllocatorStats allocator_stats() { return the_allocator().stats(); }
void reset_peak() { the_allocator().reset_peak(); }
void trim() { the_allocator().trim(); }

}  // namespace tessera::kernels
