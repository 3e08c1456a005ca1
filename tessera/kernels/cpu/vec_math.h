// Vectors of floats as wide as the instruction set that the including file is compiled for, with
// exp, log and tanh.
//
// Include it only from files compiled by tessera_isa_sources (cpu/isa.cmake): the including file
// defines TESSERA_ISA_NAMESPACE (generic, avx2, avx512, avx512_bf16, amx_bf16), so that no two instruction
// sets share a function. Accuracy, measured over all float32 arguments by vec_math_test: exp 1.0,
// log 0.9, tanh 1.5 units in the last place.
#pragma once

#include <stdint.h>
#if defined(__AVX512F__)
#include <immintrin.h>
#endif

#ifndef TESSERA_ISA_NAMESPACE
#error "define TESSERA_ISA_NAMESPACE before including vec_math.h"
#endif

#define TESSERA_INLINE [[gnu::always_inline]] inline

namespace tessera::kernels::TESSERA_ISA_NAMESPACE {

#if defined(__AVX512F__)
inline constexpr int kWidth = 16;
#elif defined(__AVX2__)
inline constexpr int kWidth = 8;
#else
inline constexpr int kWidth = 4;
#endif

using Vec = float __attribute__((vector_size(kWidth * 4)));
using IntVec = int32_t __attribute__((vector_size(kWidth * 4)));
using BitsVec = uint32_t __attribute__((vector_size(kWidth * 4)));
using HalfBitsVec = uint16_t __attribute__((vector_size(kWidth * 2)));
using ByteVec = uint8_t __attribute__((vector_size(kWidth)));

/// A bfloat16 in memory: the upper half of a float.
struct Bf16 {
  uint16_t bits;
};
/// A float16 in memory.
struct Half {
  uint16_t bits;
};
/// An 8-bit float in memory, of 3 bits of mantissa and no infinity.
struct E4M3 {
  uint8_t code;
};

// --- Loads and stores: unaligned; float or less in memory, float in registers. The partial
// --- ones touch only the first `count` (0 .. kWidth - 1) elements and read zeros for the rest.

TESSERA_INLINE Vec splat(float x) { return x - Vec{}; }
TESSERA_INLINE IntVec splat_int(int32_t x) { return x - IntVec{}; }
TESSERA_INLINE BitsVec splat_bits(uint32_t x) { return x - BitsVec{}; }

TESSERA_INLINE Vec load(const float* p) {
  Vec v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}
TESSERA_INLINE void store(float* p, Vec v) { __builtin_memcpy(p, &v, sizeof v); }

TESSERA_INLINE Vec load(const Bf16* p) {
  HalfBitsVec h;
  __builtin_memcpy(&h, p, sizeof h);
#if defined(__AVX512F__)
  // GCC 12 makes three instructions of the general form; maskz: no false warning.
  return (Vec)((BitsVec)_mm512_maskz_cvtepu16_epi32(0xffff, (__m256i)h) << 16);
#else
  return (Vec)(__builtin_convertvector(h, BitsVec) << 16);
#endif
}
/// Rounds to nearest even, as PyTorch does; a NaN stays one. (avx512_bf16: subnormals become zero.)
TESSERA_INLINE void store(Bf16* p, Vec v) {
#if defined(__AVX512BF16__)
  const auto h = _mm512_cvtneps_pbh((__m512)v);
#else
  const BitsVec bits = (BitsVec)v;
  const BitsVec rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const BitsVec kept = (v == v) ? rounded : (BitsVec)splat_int(0x7fc0);
#if defined(__AVX512F__)
  const auto h = _mm512_maskz_cvtepi32_epi16(0xffff, (__m512i)kept);
#else
  const HalfBitsVec h = __builtin_convertvector(kept, HalfBitsVec);
#endif
#endif
  __builtin_memcpy(p, &h, sizeof h);
}

TESSERA_INLINE Vec load(const Half* p) {
  HalfBitsVec h;
  __builtin_memcpy(&h, p, sizeof h);
#if defined(__AVX512F__)
  return (Vec)_mm512_maskz_cvtph_ps(0xffff, (__m256i)h);
#else
  const BitsVec wide = __builtin_convertvector(h, BitsVec), rest = (wide & 0x7fffu) << 13;
  const BitsVec finite = (BitsVec)((Vec)rest * 0x1p112f);  // subnormals, too
  return (Vec)((rest >= 0x0f800000u ? rest | 0x7f800000u : finite) | (wide & 0x8000u) << 16);
#endif
}
/// Rounds to nearest even; a NaN stays one.
TESSERA_INLINE void store(Half* p, Vec v) {
#if defined(__AVX512F__)
  const auto h = _mm512_maskz_cvtps_ph(0xffff, (__m512)v, _MM_FROUND_TO_NEAREST_INT);
#else
  const BitsVec bits = (BitsVec)v, rest = bits & 0x7fffffffu;
  const BitsVec steps = (BitsVec)((Vec)rest + 0.5f) - 0x3f000000u;  // of a subnormal
  const BitsVec normal = (rest - 0x38000000u + 0xfffu + ((rest >> 13) & 1u)) >> 13;
  const BitsVec finite = rest < 0x38800000u ? steps : normal;
  const BitsVec infinite = (v == v) ? splat_bits(0x7c00) : splat_bits(0x7e00);
  const BitsVec kept = (rest >= 0x477ff000u ? infinite : finite) | ((bits >> 16) & 0x8000u);
  const HalfBitsVec h = __builtin_convertvector(kept, HalfBitsVec);
#endif
  __builtin_memcpy(p, &h, sizeof h);
}

/// Numbers that an E4M3 holds, and NaN.
TESSERA_INLINE void store(E4M3* p, Vec v) {
  const BitsVec bits = (BitsVec)v, rest = bits & 0x7fffffffu;
  const Vec small = rest < 0x3c800000u ? (Vec)rest * 0x1p9f : Vec{};  // a subnormal's steps
  const BitsVec steps = (BitsVec) __builtin_convertvector(small, IntVec);
  const BitsVec finite = rest < 0x3c800000u ? steps : (rest - 0x3c000000u) >> 20;
  const BitsVec code = ((v == v) ? finite : splat_bits(0x7f)) | ((bits >> 24) & 0x80u);
  const ByteVec narrow = __builtin_convertvector(code, ByteVec);
  __builtin_memcpy(p, &narrow, sizeof narrow);
}

template <typename T>
TESSERA_INLINE Vec load_partial(const T* p, int64_t count) {
  T buffer[kWidth] = {};
  for (int64_t i = 0; i < count; ++i) buffer[i] = p[i];
  return load(buffer);
}
template <typename T>
TESSERA_INLINE void store_partial(T* p, Vec v, int64_t count) {
  T buffer[kWidth];
  store(buffer, v);
  for (int64_t i = 0; i < count; ++i) p[i] = buffer[i];
}

struct WholeVector {
  template <typename T>
  TESSERA_INLINE Vec load(const T* p) const {
    return TESSERA_ISA_NAMESPACE::load(p);
  }
  template <typename T>
  TESSERA_INLINE void store(T* p, Vec v) const {
    TESSERA_ISA_NAMESPACE::store(p, v);
  }
};

struct PartOfVector {
  int64_t count;
  template <typename T>
  TESSERA_INLINE Vec load(const T* p) const {
    return load_partial(p, count);
  }
  template <typename T>
  TESSERA_INLINE void store(T* p, Vec v) const {
    store_partial(p, v, count);
  }
};

/// Calls body(i, access) for whole vectors and once more for what remains: access.load(p) and
/// access.store(p, v), p at element i, read zeros and write nothing beyond the end.
template <typename Body>
TESSERA_INLINE void for_each_vector(int64_t begin, int64_t end, Body body) {
  int64_t i = begin;
  for (; i + kWidth <= end; i += kWidth) body(i, WholeVector{});
  if (i < end) body(i, PartOfVector{end - i});
}

/// `v` as it reads back after a store as T: identity for float, else rounded.
TESSERA_INLINE Vec rounded_to(Vec v, const float*) { return v; }
TESSERA_INLINE Vec rounded_to(Vec v, const Bf16*) {
  const BitsVec bits = (BitsVec)v;
  const BitsVec rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) & 0xffff0000u;
  return (v == v) ? (Vec)rounded : v;
}
TESSERA_INLINE Vec rounded_to(Vec v, const Half*) {
  Half stored[kWidth];
  store(stored, v);
  return load(stored);
}

// --- Arithmetic.

TESSERA_INLINE Vec max(Vec a, Vec b) { return a > b ? a : b; }
TESSERA_INLINE Vec min(Vec a, Vec b) { return a < b ? a : b; }
TESSERA_INLINE Vec abs(Vec v) { return (Vec)((BitsVec)v & 0x7fffffffu); }

/// Sum and maximum of the elements, always in the same order (halves added pairwise).
TESSERA_INLINE float sum_of(Vec v) {
#if defined(__AVX512F__)
  return _mm512_reduce_add_ps((__m512)v);  // the same order, in registers
#else
  float lanes[kWidth];
  store(lanes, v);
#pragma GCC unroll 16
  for (int half = kWidth / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  }
  return lanes[0];
#endif
}
TESSERA_INLINE float max_of(Vec v) {
  float lanes[kWidth];
  store(lanes, v);
#pragma GCC unroll 16
  for (int half = kWidth / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i)
      lanes[i] = lanes[i] > lanes[i + half] ? lanes[i] : lanes[i + half];
  }
  return lanes[0];
}

// --- Functions.

/// e^x. Zero below -87.34 (results that would be subnormal), infinity above 88.72; NaN gives NaN.
TESSERA_INLINE Vec exp(Vec x) {
  constexpr float kMagic =
      12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer in the low bits
  const Vec shifted = x * 1.44269504088896341f + kMagic;
  const Vec n = shifted - kMagic;
  Vec r = x - n * 0.693145751953125f;  // ln 2 in two parts: n times the first is exact
  r = r - n * 1.42860682030941723212e-6f;
  Vec p = splat(1.98756915e-4f);  // Cephes expf
  p = p * r + 1.39819995e-3f;
  p = p * r + 8.33345205e-3f;
  p = p * r + 4.16657962e-2f;
  p = p * r + 1.66666652e-1f;
  p = p * r + 5.00000012e-1f;
  p = p * (r * r) + r + 1.0f;
  // Times 2^n by adding n to the exponent: p * 2^n is normal wherever it is used.
  const IntVec n_bits = ((IntVec)shifted - (IntVec)splat(kMagic)) << 23;
  const Vec y = (Vec)((IntVec)p + n_bits);
  const Vec bounded = x < -87.336544f ? splat(0.0f) : y;
  return x <= 88.722839f ? bounded : x + __builtin_inff();
}

/// Natural logarithm of normal positive x; -infinity for zero (and subnormals), NaN below.
TESSERA_INLINE Vec log(Vec x) {
  // x = m * 2^e with m in [sqrt(1/2), sqrt(2))
  const IntVec shifted = (IntVec)x - 0x3f3504f3;
  const IntVec e = shifted >> 23;
  const Vec m = (Vec)((shifted & 0x007fffff) + 0x3f3504f3) - 1.0f;
  const Vec z = m * m;
  Vec p = splat(7.0376836292e-2f);  // Cephes logf
  p = p * m - 1.1514610310e-1f;
  p = p * m + 1.1676998740e-1f;
  p = p * m - 1.2420140846e-1f;
  p = p * m + 1.4249322787e-1f;
  p = p * m - 1.6668057665e-1f;
  p = p * m + 2.0000714765e-1f;
  p = p * m - 2.4999993993e-1f;
  p = p * m + 3.3333331174e-1f;
  const Vec n = __builtin_convertvector(e, Vec);
  const Vec tail = p * m * z + n * -2.12194440e-4f - z * 0.5f;
  Vec y = m + tail + n * 0.693359375f;
  y = x < 1.17549435e-38f ? splat(-__builtin_inff()) : y;
  y = x < 0.0f ? splat(__builtin_nanf("")) : y;
  return x > 3.40282347e38f || x != x ? x : y;
}

/// Hyperbolic tangent.
TESSERA_INLINE Vec tanh(Vec x) {
  const Vec size = abs(x);
  const Vec z = x * x;
  Vec p = splat(-5.70498872745e-3f);  // Cephes tanhf, for |x| < 0.625
  p = p * z + 2.06390887954e-2f;
  p = p * z - 5.37397155531e-2f;
  p = p * z + 1.33314422036e-1f;
  p = p * z - 3.33332819422e-1f;
  const Vec near_zero = p * z * x + x;
  const Vec far = 1.0f - 2.0f / (exp(size + size) + 1.0f);
  const Vec with_sign = (Vec)((BitsVec)far | ((BitsVec)x & 0x80000000u));
  return size < 0.625f ? near_zero : with_sign;
}

/// 1 / (1 + e^-x).
TESSERA_INLINE Vec sigmoid(Vec x) { return 1.0f / (1.0f + exp(-x)); }

}  // namespace tessera::kernels::TESSERA_ISA_NAMESPACE
