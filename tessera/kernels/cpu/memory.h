// An allocator for host tensors that keeps large blocks, in huge pages where allowed, and counts.
//
// glibc gives every large block back to the kernel and faults it in, zeroed, at the next operation:
// up to a sixth of a training step on a CPU. This one keeps it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

namespace tessera::kernels {

struct AllocatorStats {
  int64_t allocated_bytes = 0;  ///< in live tensors, as they asked
  int64_t peak_bytes = 0;       ///< the most `allocated_bytes` since the start or reset_peak()
  int64_t reserved_bytes = 0;  ///< held from the system: live blocks, rounding and kept free blocks
  int64_t system_calls = 0;  ///< blocks taken from the system so far: constant once a loop is warm
};

/// From now on every CPU tensor of the process is allocated here; earlier ones stay where they are.
/// Any thread may allocate and free. Blocks of 64 KiB and more come from the kernel on their own
/// pages, those up to 16 MiB next to each other in huge ones, larger ones aligned for such, and are kept when freed; one is used again for a
/// request that wastes at most an eighth of it. What is kept is bounded: before more is taken from
/// the kernel, the blocks longest unused go back so far that `reserved_bytes` stays within an
/// eighth (and 32 MiB) of the most ever allocated. Smaller blocks are malloc's. Calling it again
/// does nothing.
void install_caching_allocator();

/// All zero before install_caching_allocator().
AllocatorStats allocator_stats();

/// peak_bytes becomes allocated_bytes.
void reset_peak();

/// Memory that is no tensor's: zeros, huge pages if the kernel will. OutOfMemoryError if there is none.
class Pages {
 public:
  Pages() = default;
  explicit Pages(size_t bytes);
  Pages(Pages&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  Pages& operator=(Pages&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~Pages();

  void* data() const { return data_; }
  size_t size() const { return size_; }  ///< at least what was asked for

 private:
  void* data_ = nullptr;
  size_t size_ = 0;
};

/// Gives every kept block back to the system.
void trim();

}  // namespace tessera::kernels
