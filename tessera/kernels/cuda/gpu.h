// The words of kernels for GPUs that differ between CUDA, HIP and the host (tests/support/simt.h,
// which runs the same source on a CPU, for tests), and what every kernel is made of: launches, sums
// over a block.
#pragma once

#include <stdint.h>

#include <stdexcept>
#include <string>

#include "tessera/kernels/cuda/launch.h"
#include "tessera/kernels/cuda/numbers.h"

namespace tessera::kernels::TESSERA_GPU_NAMESPACE {

#if defined(__HIPCC__)
inline constexpr int kWarp = __AMDGCN_WAVEFRONT_SIZE;
#else
inline constexpr int kWarp = 32;
#endif
inline constexpr int kMaxThreads = 1024;

template <typename T>
__device__ T from_lane_xor(T value, int mask) {
#if defined(__HIPCC__)
  return __shfl_xor(value, mask);
#else
  return __shfl_xor_sync(0xffffffffu, value, mask);
#endif
}

/// Memory that a block's threads share, of as many bytes as it was started with.
__device__ inline void* shared_memory() {
#if defined(__CUDACC__) || defined(__HIPCC__)
  extern __shared__ uint4 shared_bytes[];
  return shared_bytes;
#else
  return simt::shared_memory();
#endif
}

/// Whether blocks of the kernel can be given `bytes` of it: a device's limit that is not the same for all.
template <typename... Parameters>
bool can_share(void (*kernel)(Parameters...), int bytes) {
#if defined(__CUDACC__)
  if (cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes) ==
      cudaSuccess) {
    return true;
  }
  static_cast<void>(cudaGetLastError());  // or the launch would report it
  return false;
#elif defined(__HIPCC__)
  static_cast<void>(kernel);
  return bytes <= 48 << 10;  // of 64 KB, some of which a kernel has by itself
#else
  static_cast<void>(kernel);
  return bytes <= simt::kMostShared;
#endif
}

/// Starts `blocks` of `threads` (a multiple of kWarp), each with `bytes` of shared_memory. Throws std::runtime_error if the
/// device refuses.
template <typename... Parameters, typename... Arguments>
void launch_sharing(int bytes, void (*kernel)(Parameters...), int64_t blocks, int threads,
                    Stream stream, const Arguments&... arguments) {
  if (blocks == 0) return;
#if defined(__CUDACC__)
  kernel<<<static_cast<unsigned>(blocks), threads, bytes, static_cast<cudaStream_t>(stream)>>>(
      arguments...);
  if (const auto status = cudaGetLastError(); status != cudaSuccess) {
    throw std::runtime_error(std::string("a kernel was not started: ") +
                             cudaGetErrorString(status));
  }
#elif defined(__HIPCC__)
  kernel<<<static_cast<unsigned>(blocks), threads, bytes, static_cast<hipStream_t>(stream)>>>(
      arguments...);
  if (const auto status = hipGetLastError(); status != hipSuccess) {
    throw std::runtime_error(std::string("a kernel was not started: ") + hipGetErrorString(status));
  }
#else
  static_cast<void>(stream);
  simt::run(
      blocks, threads, [&] { kernel(arguments...); }, bytes);
#endif
}

template <typename... Parameters, typename... Arguments>
void launch(void (*kernel)(Parameters...), int64_t blocks, int threads, Stream stream,
            const Arguments&... arguments) {
  launch_sharing(0, kernel, blocks, threads, stream, arguments...);
}

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// Threads for a block that shares a row of `vectors`.
inline int threads_for(int64_t vectors, int most = 512) {
  const int64_t warps = ceil_div(vectors, kWarp);
  return static_cast<int>(warps < 1 ? kWarp : warps * kWarp > most ? most : warps * kWarp);
}

/// Whether all of the addresses are multiples of 16.
template <typename... Pointers>
bool aligned(Pointers... pointers) {
  return ((reinterpret_cast<uintptr_t>(pointers) | ...) & 15) == 0;
}

/// Calls body(Width<N>, i) for a thread's elements of `count`: N at once, or what is left one by
/// one. For grids of blocks_for<N>(count) blocks of kFlatThreads.
inline constexpr int kFlatThreads = 256;
template <int N, typename Body>
__device__ void for_elements(int64_t count, Body body) {
  const int64_t first = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * N;
  if (first + N <= count) {
    body(Width<N>{}, first);
  } else {
    for (int64_t i = first; i < count; ++i) body(Width<1>{}, i);
  }
}
template <int N>
int64_t blocks_for(int64_t count) {
  return ceil_div(count, int64_t{N} * kFlatThreads);
}

// --- What kernels are chosen by, on the host.

template <typename Body>
void with_type(Element type, Body body) {
  switch (type) {
    case Element::float32:
      return body(float{});
    case Element::bfloat16:
      return body(Bf16{});
    default:
      return body(Half{});
  }
}
/// Calls `body` with the types of a norm's x and y: the same one, or float32 and one of 16 bits (autocast).
template <typename Body>
void with_norm_types(Element x, Element y, Body body) {
  with_type(y, [&](auto narrow) {
    x == Element::float32 ? body(float{}, narrow) : body(narrow, narrow);
  });
}
template <typename Body>
void with_width(bool wide, Body body) {
  wide ? body(Width<kVector>{}) : body(Width<1>{});
}

// --- Sums over a block, in one order.

struct Add {
  template <typename T>
  __device__ T operator()(T a, T b) const {
    return a + b;
  }
};
struct Max {
  __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
};

/// `value` of all threads of the block combined, given to each of them. All call it. kAgain: not for the last time.
template <typename Combine, bool kAgain = true, typename T>
__device__ T over_block(T value) {
  __shared__ T of_warps[kMaxThreads / kWarp];
#pragma unroll
  for (int mask = kWarp / 2; mask > 0; mask /= 2) {
    value = Combine{}(value, from_lane_xor(value, mask));
  }
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  if (warps == 1) return value;
  if (threadIdx.x % kWarp == 0) of_warps[threadIdx.x / kWarp] = value;
  __syncthreads();
  value = of_warps[0];
  for (int warp = 1; warp < warps; ++warp) value = Combine{}(value, of_warps[warp]);
  if (kAgain) __syncthreads();  // before the next call writes
  return value;
}

template <typename T>
__device__ T sum_over_block(T value) {
  return over_block<Add>(value);
}

}  // namespace tessera::kernels::TESSERA_GPU_NAMESPACE
