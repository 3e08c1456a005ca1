// An allocator for host tensors that keeps large blocks, in huge pages where allowed, and counts.
//
// glibc gives every large block back to the kernel and faults it in, zeroed, at the next operation:
// up to a sixth of a training step on a CPU. This one keeps it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tessera::kernels {

/// Blocks of as many bytes and more have pages of their own.
inline constexpr size_t kOwnPages = size_t{64} << 10;

struct AllocatorStats {
  int64_t allocated_bytes = 0;  ///< in live tensors, as they asked
  int64_t peak_bytes = 0;       ///< the most `allocated_bytes` since the start or reset_peak()
  int64_t reserved_bytes = 0;  ///< held from the system: live blocks, rounding and kept free blocks
  int64_t system_calls = 0;  ///< blocks taken from the system so far: constant once a loop is warm
};

/// From now on every CPU tensor of the process is allocated here; earlier ones stay where they are.
/// Any thread may allocate and free. Blocks of 64 KiB and more have pages of their own and are kept
/// when freed: those up to 16 MiB next to each other in regions of huge pages, larger ones aligned
/// for such. One is used again for a request that wastes at most an eighth of it. What is kept is
/// bounded: before more is taken from the kernel, the blocks longest unused go back so far that
/// `reserved_bytes` stays within an eighth (and 32 MiB) of the most ever allocated. Smaller blocks
/// are malloc's. Calling it again does nothing.
void install_caching_allocator();

/// All zero before install_caching_allocator().
AllocatorStats allocator_stats();

/// peak_bytes becomes allocated_bytes.
void reset_peak();

/// Gives every kept block back to the system.
void trim();

}  // namespace tessera::kernels
