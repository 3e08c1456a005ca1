// The pieces of cpu/attention_impl.h: a small matrix product held in registers, packing,
// transposing, 2^x. Include it only from files compiled by tessera_isa_sources (cpu/isa.cmake).
//
// Factors are floats or, where the processor multiplies them (AVX512-BF16), bfloat16; sums are
// floats. A product advances along the depth by steps of 32 bits: one float, or two neighbouring
// bfloat16 whose products one instruction adds to a sum. Hence two layouts of [depth, columns]:
// plain, and `paired` [depth / kDepth, columns, kDepth]. For floats they are the same.
#pragma once

#include "tessera/kernels/cpu/transpose.h"

namespace tessera::kernels::TESSERA_ISA_NAMESPACE {

/// Queries and keys are taken in blocks of kBlock tokens; a block's rows in strips of kStrip.
inline constexpr int64_t kBlock = 64;
template <typename F>
inline constexpr int64_t kStrip = kWidth == 16 ? 8 : 4;
#if defined(__AMX_BF16__)
template <>
inline constexpr int64_t kStrip<Bf16> = 32;  // two tiles of the matrix unit, one below the other
#endif

TESSERA_INLINE int64_t min_of(int64_t a, int64_t b) { return a < b ? a : b; }
TESSERA_INLINE int64_t max_of(int64_t a, int64_t b) { return a > b ? a : b; }
TESSERA_INLINE int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

TESSERA_INLINE float highest_of(Vec x) {
#if defined(__AVX512F__)
  return _mm512_reduce_max_ps((__m512)x);  // in registers, where max_of goes through memory
#else
  return max_of(x);
#endif
}

/// 2^x for x <= 0 and a little above: zero below -126; NaN gives NaN. Within 2 units in the last
/// place (Cephes exp2f).
TESSERA_INLINE Vec exp2_of(Vec x) {
#if defined(__AVX512F__)
  const Vec whole = (Vec)_mm512_roundscale_ps((__m512)x, _MM_FROUND_TO_NEAREST_INT);
#else
  constexpr float kMagic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  const Vec shifted = x + kMagic;
  const Vec whole = shifted - kMagic;
#endif
  const Vec r = x - whole;
  Vec p = splat(1.535336188319500e-4f);
  p = p * r + 1.339887440266574e-3f;
  p = p * r + 9.618437357674640e-3f;
  p = p * r + 5.550332471162809e-2f;
  p = p * r + 2.402264791363012e-1f;
  p = p * r + 6.931472028550421e-1f;
  p = p * r + 1.0f;
#if defined(__AVX512F__)
  const __mmask16 normal = _mm512_cmp_ps_mask((__m512)x, _mm512_set1_ps(-126.0f), _CMP_NLT_UQ);
  return (Vec)_mm512_maskz_scalef_ps(normal, (__m512)p, (__m512)whole);
#else
  const IntVec exponent = ((IntVec)shifted - (IntVec)splat(kMagic) + 127) << 23;
  return x < -126.0f ? splat(0.0f) : p * (Vec)exponent;
#endif
}

/// The first `count` elements of x, zeros after them.
TESSERA_INLINE Vec first_of(Vec x, int64_t count) {
#if defined(__AVX512F__)
  const auto kept = count <= 0 ? 0u : 0xffffu >> (kWidth - min_of(count, kWidth));
  return (Vec)_mm512_maskz_mov_ps(static_cast<__mmask16>(kept), (__m512)x);
#else
  float lanes[kWidth];
  store(lanes, x);
  for (int64_t i = max_of(count, 0); i < kWidth; ++i) lanes[i] = 0;
  return load(lanes);
#endif
}

/// x with its first `count` elements zero.
TESSERA_INLINE Vec without_first(Vec x, int64_t count) {
#if defined(__AVX512F__)
  const auto kept = count >= kWidth ? 0u : 0xffffu << max_of(count, 0);
  return (Vec)_mm512_maskz_mov_ps(static_cast<__mmask16>(kept), (__m512)x);
#else
  float lanes[kWidth];
  store(lanes, x);
  for (int64_t i = 0; i < min_of(count, kWidth); ++i) lanes[i] = 0;
  return load(lanes);
#endif
}

// --- Factors.

/// What the elements T of a tensor are multiplied as.
template <typename T>
struct FactorOf {
  using Type = float;
};
#if defined(__AVX512BF16__)
template <>
struct FactorOf<Bf16> {
  using Type = Bf16;
};
#endif
template <typename T>
using Factor = typename FactorOf<T>::Type;

/// Elements of a step.
template <typename F>
inline constexpr int64_t kDepth = sizeof(float) / sizeof(F);

template <typename F>
TESSERA_INLINE Vec load_steps(const F* p) {
  Vec v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}
template <typename F>
TESSERA_INLINE void store_steps(F* p, Vec steps) {
  __builtin_memcpy(p, &steps, sizeof steps);
}
template <typename F>
TESSERA_INLINE Vec splat_step(const F* p) {
  int32_t step;
  __builtin_memcpy(&step, p, sizeof step);
  return (Vec)splat_int(step);
}

/// sum + left * right, the products of each step added.
TESSERA_INLINE Vec add_products(Vec sum, Vec left, Vec right, const float*) {
  return sum + left * right;
}

/// Stores kDepth vectors one after the other and adds them to sums [kWidth] as they are stored:
/// rounded weights over the sum of rounded weights have no error in common.
TESSERA_INLINE Vec store_and_add(float* to, const Vec (&row)[1], Vec sums) {
  store(to, row[0]);
  return sums + row[0];
}

/// Stores kDepth rows of one vector each in the paired layout.
TESSERA_INLINE void store_paired(float* to, const Vec (&rows)[1]) { store(to, rows[0]); }

#if defined(__AVX512BF16__)
TESSERA_INLINE Vec add_products(Vec sum, Vec left, Vec right, const Bf16*) {
  return (Vec)_mm512_dpbf16_ps((__m512)sum, (__m512bh)left, (__m512bh)right);
}
TESSERA_INLINE Vec store_and_add(Bf16* to, const Vec (&row)[2], Vec sums) {
  const auto joined = _mm512_cvtne2ps_pbh((__m512)row[1], (__m512)row[0]);
  _mm512_storeu_si512(to, (__m512i)joined);
  return (Vec)_mm512_dpbf16_ps((__m512)sums, joined, (__m512bh)_mm512_set1_epi16(0x3f80));  // ones
}
TESSERA_INLINE void store_paired(Bf16* to, const Vec (&rows)[2]) {
  alignas(64) static constexpr uint16_t kOrder[32] = {0,  16, 1,  17, 2,  18, 3,  19, 4,  20, 5,
                                                      21, 6,  22, 7,  23, 8,  24, 9,  25, 10, 26,
                                                      11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  const auto joined = (__m512i)_mm512_cvtne2ps_pbh((__m512)rows[1], (__m512)rows[0]);
  _mm512_storeu_si512(to, _mm512_permutexvar_epi16(_mm512_load_si512(kOrder), joined));
}
#endif

/// A product's left factor: step s of row r lies at data[r * row_stride + s * step_stride].
template <typename F>
struct Left {
  const F* data;
  int64_t row_stride;
  int64_t step_stride;
};

/// c [kStrip, N vectors] (+)= a [kStrip, steps] * b [steps, N vectors], the sums held in registers.
template <typename F, int N, bool kAccumulate>
[[gnu::noinline]] void multiply_tile(Left<F> a, int64_t steps, const F* b, int64_t b_stride,
                                     float* c, int64_t c_stride) {
  Vec sums[kStrip<F>][N];
#pragma GCC unroll 8
  for (int64_t i = 0; i < kStrip<F>; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < N; ++j) {
      sums[i][j] = kAccumulate ? load(c + i * c_stride + j * kWidth) : Vec{};
    }
  }
  for (int64_t step = 0; step < steps; ++step, b += b_stride) {
    Vec right[N];
#pragma GCC unroll 4
    for (int j = 0; j < N; ++j) right[j] = load_steps(b + j * kWidth * kDepth<F>);
#pragma GCC unroll 8
    for (int64_t i = 0; i < kStrip<F>; ++i) {
      const Vec left = splat_step(a.data + i * a.row_stride + step * a.step_stride);
#pragma GCC unroll 4
      for (int j = 0; j < N; ++j) sums[i][j] = add_products(sums[i][j], left, right[j], b);
    }
  }
#pragma GCC unroll 8
  for (int64_t i = 0; i < kStrip<F>; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < N; ++j) store(c + i * c_stride + j * kWidth, sums[i][j]);
  }
}

/// c [kStrip, vectors] (+)= a [kStrip, depth] * b [depth, vectors], b paired and its rows of
/// `columns` elements; `vectors` counts registers of kWidth columns. An odd depth reads one more.
template <bool kAccumulate, typename F>
void multiply(Left<F> a, int64_t depth, const F* b, int64_t columns, float* c, int64_t c_stride,
              int64_t vectors) {
  const int64_t steps = (depth + kDepth<F> - 1) / kDepth<F>, stride = columns * kDepth<F>;
  while (vectors > 0) {
    int64_t taken = 1;
    if (vectors == 3 || vectors > 4) {
      taken = 3;
      multiply_tile<F, 3, kAccumulate>(a, steps, b, stride, c, c_stride);
    } else if (vectors > 1) {
      taken = 2;
      multiply_tile<F, 2, kAccumulate>(a, steps, b, stride, c, c_stride);
    } else {
      multiply_tile<F, 1, kAccumulate>(a, steps, b, stride, c, c_stride);
    }
    vectors -= taken;
    b += taken * kWidth * kDepth<F>;
    c += taken * kWidth;
  }
}

}  // namespace tessera::kernels::TESSERA_ISA_NAMESPACE

#if defined(__AMX_BF16__)
#include "tessera/kernels/cpu/attention_amx.h"
#endif

namespace tessera::kernels::TESSERA_ISA_NAMESPACE {

#if !defined(__AMX_BF16__)
/// What products need of a thread before and after them: nothing.
struct TileScope {
  TileScope() {}
};
#endif

// --- Packing.

/// `count` rows of one head of a tensor: `dim` elements each, `stride` apart.
template <typename T>
struct Rows {
  const T* data;
  int64_t count;
  int64_t stride;
  int64_t dim;
};

/// The elements d .. d + kWidth of row `row`, zeros past the row's end.
template <typename T>
TESSERA_INLINE Vec load_row(const Rows<T>& from, int64_t row, int64_t d) {
  const T* p = from.data + row * from.stride + d;
  if (d + kWidth <= from.dim) return load(p);
  return d < from.dim ? load_partial(p, from.dim - d) : Vec{};
}

/// Asks for a row that packing will come to: a head's rows lie as far apart as the heads together
/// are wide, where the processor does not look ahead by itself.
template <typename T>
TESSERA_INLINE void prefetch_row(const Rows<T>& from, int64_t row) {
  constexpr int64_t kLine = 64 / sizeof(T), kAhead = 16;
  if (row + kAhead >= from.count) return;
  const T* p = from.data + (row + kAhead) * from.stride;
  for (int64_t d = 0; d < from.dim; d += kLine) __builtin_prefetch(p + d);
}

/// One row of floats times `factor` into a tensor's row.
template <typename T>
TESSERA_INLINE void unpack_row(const float* from, int64_t dim, float factor, T* to) {
  int64_t d = 0;
  for (; d + kWidth <= dim; d += kWidth) store(to + d, load(from + d) * factor);
  if (d < dim) store_partial(to + d, load(from + d) * factor, dim - d);
}

/// Rows begin .. begin + rows times `factor` into to [rows rounded up to kBlock, padded], else
/// zeros.
template <typename T, typename F>
void pack_rows(const Rows<T>& from, int64_t begin, int64_t rows, float factor, F* to,
               int64_t padded) {
  for (int64_t r = 0; r < round_up(rows, kBlock); ++r) {
    prefetch_row(from, begin + r);
    for (int64_t d = 0; d < padded; d += kWidth) {
      store(to + r * padded + d, r < rows ? load_row(from, begin + r, d) * factor : Vec{});
    }
  }
}

/// The same in the paired layout.
template <typename T, typename F>
void pack_paired(const Rows<T>& from, int64_t begin, int64_t rows, float factor, F* to,
                 int64_t padded) {
  for (int64_t r = 0; r < round_up(rows, kBlock); r += kDepth<F>) {
    for (int64_t i = 0; i < kDepth<F>; ++i) prefetch_row(from, begin + r + i);
    for (int64_t d = 0; d < padded; d += kWidth) {
      Vec step[kDepth<F>] = {};
      for (int64_t i = 0; i < kDepth<F> && r + i < rows; ++i) {
        step[i] = load_row(from, begin + r + i, d) * factor;
      }
      store_paired(to + r * padded + d * kDepth<F>, step);
    }
  }
}

/// from [kBlock, padded], plain, to its transpose [padded, kBlock], paired.
template <typename F>
[[gnu::noinline]] void transpose_block(const F* from, int64_t padded, F* to) {
  constexpr int64_t kStep = kDepth<F>;
  for (int64_t r = 0; r < kBlock; r += kWidth) {
    for (int64_t d = 0; d < padded; d += kWidth * kStep) {
      Vec rows[kWidth];
#pragma GCC unroll 16
      for (int i = 0; i < kWidth; ++i) rows[i] = load_steps(from + (r + i) * padded + d);
      transpose(rows);
#pragma GCC unroll 16
      for (int i = 0; i < kWidth; ++i)
        store_steps(to + (d + i * kStep) * kBlock + r * kStep, rows[i]);
    }
  }
}

}  // namespace tessera::kernels::TESSERA_ISA_NAMESPACE
