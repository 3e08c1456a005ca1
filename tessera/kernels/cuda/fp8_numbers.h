// What the kernels of fp8.cu do with a thread's eight numbers: their largest magnitude, its scale, their codes.
#pragma once

#include "tessera/kernels/cuda/gpu.h"

namespace tessera::kernels::TESSERA_GPU_NAMESPACE {

template <bool kE5M2>
inline constexpr float kLargestNumber = kE5M2 ? 57344.0f : 448.0f;

// --- Magnitudes, as the bits of a float without its sign: in their order, and NaN above infinity.

struct Larger {
  __device__ uint32_t operator()(uint32_t a, uint32_t b) const { return a > b ? a : b; }
};

inline constexpr uint32_t kInfinityBits = 0x7f800000u;

/// Numbers of 16 bits are compared as such.
__device__ inline uint32_t size_of(float x) { return bits_as<uint32_t>(x) & 0x7fffffffu; }
__device__ inline uint32_t size_of(Bf16 x) { return x.bits & 0x7fffu; }
__device__ inline uint32_t size_of(Half x) { return x.bits & 0x7fffu; }

template <typename T>
__device__ uint32_t magnitude_of(uint32_t size) {
  if constexpr (sizeof(T) == 2) {
    return bits_as<uint32_t>(to_float(T{static_cast<uint16_t>(size)}));
  } else {
    return size;
  }
}

template <typename T>
using Eight = Packed<kVector, T>;

/// N: 1 where the address is no multiple of 16 bytes.
template <int N, typename T>
__device__ Eight<T> eight_at(const T* from) {
  Eight<T> numbers;
  if constexpr (N == 1) {
#pragma unroll
    for (int k = 0; k < kVector; ++k) numbers.set(k, from[k]);
  } else {
    numbers.fetch(from);
  }
  return numbers;
}

// --- Scales: kernels/fp8.cpp has the same for the host.

__device__ inline float power_below(float x) {
  return bits_as<float>(bits_as<uint32_t>(x) & kInfinityBits);
}

__device__ inline float quotient(float largest, float amax) {
  constexpr double kSmallestAmax = 1e-12;
  const double divisor = amax < kSmallestAmax ? kSmallestAmax : static_cast<double>(amax);
  return static_cast<float>(static_cast<double>(largest) / divisor);
}

/// 2^-e with e the exponent of the power of two above.
__device__ inline float e8m0_scale(float x) {
  if (x != x) return 0x1p-128f;  // NaN's exponent is 255
  const uint32_t bits = bits_as<uint32_t>(x), mantissa = bits & 0x7fffffu;
  uint32_t exponent = bits >> 23;
  const bool within_subnormals = exponent == 0 && mantissa <= 0x400000u;
  if (exponent < 0xfeu) {
    exponent += mantissa > 0 && !within_subnormals ? 1 : 0;
  } else {
    exponent = 0xfeu;
  }
  const uint32_t biased = 254u - exponent;
  return bits_as<float>(biased > 0 ? biased << 23 : 0x400000u);
}

__device__ inline float scale_by(Fp8ScaleRule rule, float largest, float amax) {
  switch (rule) {
    case Fp8ScaleRule::exact:
      return quotient(largest, amax);
    case Fp8ScaleRule::power_of_two:
      return power_below(quotient(largest, amax));
    case Fp8ScaleRule::block: {
      constexpr float kLargestFloat = 0x1.fffffep127f;
      if (amax == 0.0f || amax > kLargestFloat) return 1;
      const float scale = largest / amax;
      return power_below(scale > kLargestFloat ? kLargestFloat : scale);  // NaN's: infinity
    }
    case Fp8ScaleRule::e8m0:
      return e8m0_scale(amax * (1 / largest));
  }
  return 0;
}

// --- Codes.

struct alignas(8) EightCodes {
  uint8_t v[8];
};

/// Saturated.
template <bool kE5M2>
__device__ EightCodes codes_of(const Floats<kVector>& numbers) {
  EightCodes codes;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
#pragma unroll
  for (int k = 0; k < kVector; k += 2) {
    uint16_t two;
    if constexpr (kE5M2) {
      asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;"
          : "=h"(two)
          : "f"(numbers[k + 1]), "f"(numbers[k]));
    } else {
      asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;"
          : "=h"(two)
          : "f"(numbers[k + 1]), "f"(numbers[k]));
    }
    codes.v[k] = static_cast<uint8_t>(two), codes.v[k + 1] = static_cast<uint8_t>(two >> 8);
  }
#else
  constexpr float kLargest = kLargestNumber<kE5M2>;
  for (int k = 0; k < kVector; ++k) {
    const float x = numbers[k];
    codes.v[k] = code_of<kE5M2>(x > kLargest ? kLargest : x < -kLargest ? -kLargest : x);
  }
#endif
  return codes;
}

/// What codes lost of a thread's numbers.
struct Lost {
  unsigned underflows = 0, overflows = 0;

  /// `bound`: what is further from zero is beyond the range.
  template <typename T>
  __device__ void add(const Eight<T>& numbers, const EightCodes& codes, float bound) {
#pragma unroll
    for (int k = 0; k < kVector; ++k) {
      const float x = numbers[k];
      underflows += x != 0 && (codes.v[k] & 0x7fu) == 0 ? 1 : 0;
      overflows += fabsf(x) > bound ? 1 : 0;
    }
  }

  /// Of integers, whose order does not matter. All of a block call it.
  __device__ void tell(unsigned long long* sums) const {
    const unsigned under = sum_over_block(underflows), over = sum_over_block(overflows);
    if (threadIdx.x == 0 && under > 0) atomicAdd(sums, under);
    if (threadIdx.x == 0 && over > 0) atomicAdd(sums + 1, over);
  }
};

}  // namespace tessera::kernels::TESSERA_GPU_NAMESPACE
