// Numbers as kernels have them: types of fewer bits than a float, vectors of 16 bytes.
#pragma once

#include <stdint.h>

#include "tessera/kernels/cuda/launch.h"

#if defined(__CUDACC__)
#include <cuda_runtime.h>
#elif defined(__HIPCC__)
#include <hip/hip_runtime.h>
#else
#include "tests/support/simt.h"
#endif

namespace tessera::kernels::TESSERA_GPU_NAMESPACE {

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

/// a * b, rounded before it is used: the difference of equal products is zero, as it is not where one is part of a fused
/// operation.
__device__ inline float product(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fmul_rn(a, b);
#else
  return a * b;
#endif
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

/// N elements of 2 or 4 bytes as they lie in memory, in fewer registers than as floats: as words, because a compiler gives
/// each short number a register of its own.
template <int N, typename T>
struct Packed {
  static constexpr int kParts = N == 1 ? 1 : N * sizeof(T) / 16, kShort = 4 / sizeof(T);
  Sixteen<uint32_t> parts[kParts];
  T one;

  __device__ void fetch(const T* p) {
    if constexpr (N == 1) {
      one = *p;
    } else {
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        parts[part] = reinterpret_cast<const Sixteen<uint32_t>*>(p)[part];
      }
    }
  }
  __device__ void put(T* p) const {
    if constexpr (N == 1) {
      *p = one;
    } else {
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        reinterpret_cast<Sixteen<uint32_t>*>(p)[part] = parts[part];
      }
    }
  }
  /// From here on the compiler unpacks again what is used, and need not keep all of it as floats in registers.
  __device__ void unpack_again() {
#if defined(__CUDA_ARCH__)
    if constexpr (N != 1 && kShort > 1) {
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
#pragma unroll
        for (int word = 0; word < 4; ++word) asm volatile("" : "+r"(parts[part].v[word]));
      }
    }
#endif
  }
  /// One by one, where the address is no multiple of 16 bytes.
  __device__ void set(int k, T value) {
    if constexpr (N == 1) {
      one = value;
    } else if constexpr (kShort == 1) {
      parts[k / 4].v[k % 4] = bits_as<uint32_t>(value);
    } else {
      uint32_t& word = parts[k / 8].v[k % 8 / 2];
      const int shift = k % 2 * 16;
      word = (word & ~(0xffffu << shift)) | static_cast<uint32_t>(value.bits) << shift;
    }
  }
  __device__ T at(int k) const {
    if constexpr (N == 1) {
      return one;
    } else if constexpr (kShort == 1) {
      return bits_as<T>(parts[k / 4].v[k % 4]);
    } else {
      return T{static_cast<uint16_t>(parts[k / 8].v[k % 8 / 2] >> (k % 2 * 16))};
    }
  }
  __device__ float operator[](int k) const { return to_float(at(k)); }
};

template <int N, typename T>
__device__ Packed<N, T> packed(const T* p) {
  Packed<N, T> to;
  to.fetch(p);
  return to;
}

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

}  // namespace tessera::kernels::TESSERA_GPU_NAMESPACE
