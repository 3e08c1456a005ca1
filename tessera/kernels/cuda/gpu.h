// The words of kernels for GPUs that differ between CUDA, HIP and the host (tests/support/simt.h,
// which runs the same source on a CPU, for tests), and what every kernel is made of: sums over a
// block, vectors of 16 bytes.
#pragma once

#include <stdint.h>

#include <stdexcept>
#include <string>

#include "tessera/kernels/cuda/launch.h"

#if defined(__CUDACC__)
#include <cuda_runtime.h>
#elif defined(__HIPCC__)
#include <hip/hip_runtime.h>
#else
#include "tests/support/simt.h"
#endif

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

/// Starts `blocks` of `threads` (a multiple of kWarp). Throws std::runtime_error if the device
/// refuses.
template <typename... Parameters, typename... Arguments>
void launch(void (*kernel)(Parameters...), int64_t blocks, int threads, Stream stream,
            const Arguments&... arguments) {
  if (blocks == 0) return;
#if defined(__CUDACC__)
  kernel<<<static_cast<unsigned>(blocks), threads, 0, static_cast<cudaStream_t>(stream)>>>(
      arguments...);
  if (const auto status = cudaGetLastError(); status != cudaSuccess) {
    throw std::runtime_error(std::string("a kernel was not started: ") +
                             cudaGetErrorString(status));
  }
#elif defined(__HIPCC__)
  kernel<<<static_cast<unsigned>(blocks), threads, 0, static_cast<hipStream_t>(stream)>>>(
      arguments...);
  if (const auto status = hipGetLastError(); status != hipSuccess) {
    throw std::runtime_error(std::string("a kernel was not started: ") + hipGetErrorString(status));
  }
#else
  static_cast<void>(stream);
  simt::run(blocks, threads, [&] { kernel(arguments...); });
#endif
}

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// Threads for a block that shares a row of `vectors`.
inline int threads_for(int64_t vectors, int most = 512) {
  const int64_t warps = ceil_div(vectors, kWarp);
  return static_cast<int>(warps < 1 ? kWarp : warps * kWarp > most ? most : warps * kWarp);
}

// --- Numbers.

struct Bf16 {
  uint16_t bits;
};
struct Half {
  uint16_t bits;
};
struct E4M3 {
  uint8_t code;
};

template <typename To, typename From>
__device__ To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  __builtin_memcpy(&to, &from, sizeof to);
  return to;
}

__device__ inline float to_float(float x) { return x; }
__device__ inline float to_float(Bf16 x) {
  return bits_as<float>(static_cast<uint32_t>(x.bits) << 16);
}
__device__ inline float to_float(Half x) {
  const uint32_t sign = (x.bits & 0x8000u) << 16, rest = x.bits & 0x7fffu;
  const float finite = bits_as<float>(rest << 13) * 0x1p112f;  // subnormals, too
  const float wide = rest >= 0x7c00u ? bits_as<float>((rest << 13) | 0x7f800000u) : finite;
  return bits_as<float>(bits_as<uint32_t>(wide) | sign);
}

/// To nearest, ties to even.
__device__ inline void from_float(float x, float& to) { to = x; }
__device__ inline void from_float(float x, Bf16& to) {
#if defined(__CUDA_ARCH__)
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(to.bits) : "f"(x));
#else
  const uint32_t bits = bits_as<uint32_t>(x);
  to.bits = x != x ? uint16_t{0x7fff}
                   : static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
#endif
}
__device__ inline void from_float(float x, Half& to) {
#if defined(__CUDA_ARCH__)
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(to.bits) : "f"(x));
#else
  const uint32_t bits = bits_as<uint32_t>(x), rest = bits & 0x7fffffffu;
  uint32_t near = (rest - 0x38000000u + 0xfffu + ((rest >> 13) & 1u)) >> 13;
  if (rest < 0x38800000u) near = static_cast<uint32_t>(rintf(bits_as<float>(rest) * 0x1p24f));
  if (rest >= 0x477ff000u) near = x != x ? 0x7fffu : 0x7c00u;
  to.bits = static_cast<uint16_t>(near | ((bits >> 16) & 0x8000u));
#endif
}

/// The code of a number within the range of E4M3 or E5M2, or of NaN: rounded to nearest, ties to even.
template <bool kE5M2>
__device__ uint8_t code_of(float x) {
  constexpr int kMantissa = kE5M2 ? 2 : 3, kBias = kE5M2 ? 15 : 7;
  constexpr float kSmallestNormal = kE5M2 ? 0x1p-14f : 0x1p-6f;
  constexpr float kMagic = kE5M2 ? 0x1p7f : 0x1p14f;  // whose last bit is the smallest subnormal
  const uint32_t sign = (bits_as<uint32_t>(x) >> 24) & 0x80u;
  const float size = bits_as<float>(bits_as<uint32_t>(x) & 0x7fffffffu);
  uint32_t code = 0x7f;  // NaN
  if (size < kSmallestNormal) {
    code = bits_as<uint32_t>(size + kMagic) - bits_as<uint32_t>(kMagic);
  } else if (size == size) {
    constexpr int kDropped = 23 - kMantissa;
    const uint32_t bits = bits_as<uint32_t>(size) - (static_cast<uint32_t>(127 - kBias) << 23);
    code = (bits + ((1u << (kDropped - 1)) - 1) + ((bits >> kDropped) & 1u)) >> kDropped;
  }
  return static_cast<uint8_t>(sign | code);
}
__device__ inline void from_float(float x, E4M3& to) { to.code = code_of<false>(x); }

template <typename T>
__device__ float rounded_to(float x) {
  T narrow;
  from_float(x, narrow);
  return to_float(narrow);
}

// --- Vectors: N elements a thread, 16 bytes at a time for N = kVector, one by one for N = 1.

inline constexpr int kVector = 8;

template <int N>
struct Width {
  static constexpr int value = N;
};

template <int N>
struct Floats {
  float v[N];
  __device__ float& operator[](int k) { return v[k]; }
  __device__ const float& operator[](int k) const { return v[k]; }
};

template <typename T>
struct alignas(16) Sixteen {
  T v[16 / sizeof(T)];
};

/// N elements as they lie in memory, in fewer registers than as floats.
template <int N, typename T>
struct Packed {
  static constexpr int kEach = N == 1 ? 1 : 16 / sizeof(T);
  Sixteen<T> parts[N / kEach];
  T one;

  __device__ void fetch(const T* p) {
    if constexpr (N == 1) {
      one = *p;
    } else {
#pragma unroll
      for (int part = 0; part < N / kEach; ++part) {
        parts[part] = reinterpret_cast<const Sixteen<T>*>(p)[part];
      }
    }
  }
  /// One by one, where the address is no multiple of 16 bytes.
  __device__ void set(int k, T value) { parts[k / kEach].v[k % kEach] = value; }
  __device__ float operator[](int k) const {
    if constexpr (N == 1) {
      return to_float(one);
    } else {
      return to_float(parts[k / kEach].v[k % kEach]);
    }
  }
};

template <int N, typename T>
__device__ Floats<N> load(const T* p) {
  Floats<N> to;
  if constexpr (N == 1) {
    to[0] = to_float(*p);
  } else {
    constexpr int kEach = 16 / sizeof(T);
#pragma unroll
    for (int part = 0; part < N / kEach; ++part) {
      const auto sixteen = reinterpret_cast<const Sixteen<T>*>(p)[part];
#pragma unroll
      for (int k = 0; k < kEach; ++k) to[part * kEach + k] = to_float(sixteen.v[k]);
    }
  }
  return to;
}

template <int N, typename T>
__device__ void store(T* p, const Floats<N>& from) {
  if constexpr (N == 1) {
    from_float(from[0], *p);
  } else {
    constexpr int kEach = 16 / sizeof(T);
#pragma unroll
    for (int part = 0; part < N / kEach; ++part) {
      Sixteen<T> sixteen;
#pragma unroll
      for (int k = 0; k < kEach; ++k) from_float(from[part * kEach + k], sixteen.v[k]);
      reinterpret_cast<Sixteen<T>*>(p)[part] = sixteen;
    }
  }
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

/// `value` of all threads of the block combined, given to each of them. All call it.
template <typename Combine, typename T>
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
  __syncthreads();  // before the next call writes
  return value;
}

template <typename T>
__device__ T sum_over_block(T value) {
  return over_block<Add>(value);
}

}  // namespace tessera::kernels::TESSERA_GPU_NAMESPACE
