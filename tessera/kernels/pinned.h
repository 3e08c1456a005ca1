// Memory of the host that a device copies from and to by itself.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>

#include <memory>

namespace tessera::kernels {

/// Pinned (page-locked) memory if `device` is a GPU: copies to and from it go on beside the host, at the bus's speed. A
/// block is as large as asked, where LibTorch's own take the next power of two. What is freed is kept, as pinning takes
/// long: the smallest block that is large enough is used again, if it is at most twice as large. Blocks below
/// kernels::kOwnPages, and all where the system refuses (one line on stderr says so), are plain memory: copies are slower
/// then, and the host waits for them. Of other devices the host's allocator. Any thread may allocate and free.
c10::Allocator* pinned_allocator(at::Device device);

/// [size] of such memory, not filled.
at::Tensor empty_pinned(int64_t size, at::ScalarType dtype, at::Device device);

/// What pins memory for good: says why it could not, or null.
using LockPages = const char* (*)(void* first, size_t bytes);
/// For tests: the same with another one. It must outlive its blocks.
std::unique_ptr<c10::Allocator> make_pinned_allocator(LockPages lock);

}  // namespace tessera::kernels
