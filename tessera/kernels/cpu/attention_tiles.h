// The pieces of cpu/attention_impl.h: a small matrix product held in registers, packing,
// transposing, 2^x. Include it only from files compiled by tessera_isa_sources (cpu/isa.cmake).
#pragma once

#include "tessera/kernels/cpu/vec_math.h"

namespace tessera::kernels::TESSERA_ISA_NAMESPACE {

/// Queries and keys are taken in blocks of kBlock tokens; a block's rows in strips of kStrip.
inline constexpr int64_t kBlock = 64;
inline constexpr int64_t kStrip = kWidth == 16 ? 8 : 4;

TESSERA_INLINE int64_t min_of(int64_t a, int64_t b) { return a < b ? a : b; }
TESSERA_INLINE int64_t max_of(int64_t a, int64_t b) { return a > b ? a : b; }
TESSERA_INLINE int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

/// 2^x for x <= 0 and a little above: zero below -126; NaN gives NaN. Within 2 units in the last
/// place (Cephes exp2f).
TESSERA_INLINE Vec exp2_of(Vec x) {
  constexpr float kMagic =
      12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer in the low bits
  const Vec shifted = x + kMagic;
  const Vec r = x - (shifted - kMagic);
  Vec p = splat(1.535336188319500e-4f);
  p = p * r + 1.339887440266574e-3f;
  p = p * r + 9.618437357674640e-3f;
  p = p * r + 5.550332471162809e-2f;
  p = p * r + 2.402264791363012e-1f;
  p = p * r + 6.931472028550421e-1f;
  p = p * r + 1.0f;
  const IntVec exponent = ((IntVec)shifted - (IntVec)splat(kMagic) + 127) << 23;
  return x < -126.0f ? splat(0.0f) : p * (Vec)exponent;
}

/// Where the left factor of a product lies: element (row, step) at data[row * row_stride + step *
/// step_stride].
struct Left {
  const float* data;
  int64_t row_stride;
  int64_t step_stride;
};

/// c [kStrip, N vectors] (+)= a [kStrip, depth] * b [depth, N vectors], the sums held in registers.
template <int N, bool kAccumulate>
[[gnu::noinline]] void multiply_tile(Left a, int64_t depth, const float* b, int64_t b_stride,
                                     float* c, int64_t c_stride) {
  Vec sums[kStrip][N];
#pragma GCC unroll 8
  for (int64_t i = 0; i < kStrip; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < N; ++j) {
      sums[i][j] = kAccumulate ? load(c + i * c_stride + j * kWidth) : Vec{};
    }
  }
  for (int64_t step = 0; step < depth; ++step) {
    Vec right[N];
#pragma GCC unroll 4
    for (int j = 0; j < N; ++j) right[j] = load(b + step * b_stride + j * kWidth);
#pragma GCC unroll 8
    for (int64_t i = 0; i < kStrip; ++i) {
      const Vec left = splat(a.data[i * a.row_stride + step * a.step_stride]);
#pragma GCC unroll 4
      for (int j = 0; j < N; ++j) sums[i][j] += left * right[j];
    }
  }
#pragma GCC unroll 8
  for (int64_t i = 0; i < kStrip; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < N; ++j) store(c + i * c_stride + j * kWidth, sums[i][j]);
  }
}

/// c [kStrip, vectors] (+)= a [kStrip, depth] * b [depth, vectors]; `vectors` counts registers of
/// kWidth columns.
template <bool kAccumulate>
void multiply(Left a, int64_t depth, const float* b, int64_t b_stride, float* c, int64_t c_stride,
              int64_t vectors) {
  while (vectors > 0) {
    int64_t taken = 1;
    if (vectors == 3 || vectors > 4) {
      taken = 3;
      multiply_tile<3, kAccumulate>(a, depth, b, b_stride, c, c_stride);
    } else if (vectors > 1) {
      taken = 2;
      multiply_tile<2, kAccumulate>(a, depth, b, b_stride, c, c_stride);
    } else {
      multiply_tile<1, kAccumulate>(a, depth, b, b_stride, c, c_stride);
    }
    vectors -= taken;
    b += taken * kWidth;
    c += taken * kWidth;
  }
}

/// One row of `dim` elements times `factor` into floats, zeros after them up to `padded`.
template <typename T>
TESSERA_INLINE void pack_row(const T* from, int64_t dim, float factor, float* to, int64_t padded) {
  int64_t d = 0;
  for (; d + kWidth <= dim; d += kWidth) store(to + d, load(from + d) * factor);
  if (d < dim) {
    store(to + d, load_partial(from + d, dim - d) * factor);
    d += kWidth;
  }
  for (; d < padded; d += kWidth) store(to + d, Vec{});
}

/// The reverse of pack_row.
template <typename T>
TESSERA_INLINE void unpack_row(const float* from, int64_t dim, float factor, T* to) {
  int64_t d = 0;
  for (; d + kWidth <= dim; d += kWidth) store(to + d, load(from + d) * factor);
  if (d < dim) store_partial(to + d, load(from + d) * factor, dim - d);
}

/// The rows [begin, begin + rows) of one head into to [rows rounded up to kBlock, padded], zeros
/// below.
template <typename T>
void pack_rows(const T* head, int64_t token_stride, int64_t begin, int64_t rows, int64_t dim,
               float factor, float* to, int64_t padded) {
  for (int64_t r = 0; r < rows; ++r) {
    pack_row(head + (begin + r) * token_stride, dim, factor, to + r * padded, padded);
  }
  for (int64_t i = rows * padded; i < round_up(rows, kBlock) * padded; i += kWidth) {
    store(to + i, Vec{});
  }
}

/// from [kBlock, padded] to its transpose [padded, kBlock], kWidth x kWidth at a time in registers:
/// log2(kWidth) perfect shuffles of the rows' concatenation are a transpose.
[[gnu::noinline]] inline void transpose_block(const float* from, int64_t padded, float* to) {
  IntVec low{}, high{};
  for (int i = 0; i < kWidth; ++i) {
    low[i] = i / 2 + (i % 2) * kWidth;
    high[i] = low[i] + kWidth / 2;
  }
  for (int64_t r = 0; r < kBlock; r += kWidth) {
    for (int64_t d = 0; d < padded; d += kWidth) {
      Vec rows[kWidth], mixed[kWidth];
#pragma GCC unroll 16
      for (int i = 0; i < kWidth; ++i) rows[i] = load(from + (r + i) * padded + d);
#pragma GCC unroll 4
      for (int stage = 1; stage < kWidth; stage *= 2) {
#pragma GCC unroll 8
        for (int i = 0; i < kWidth / 2; ++i) {
          mixed[2 * i] = __builtin_shuffle(rows[i], rows[i + kWidth / 2], low);
          mixed[2 * i + 1] = __builtin_shuffle(rows[i], rows[i + kWidth / 2], high);
        }
#pragma GCC unroll 16
        for (int i = 0; i < kWidth; ++i) rows[i] = mixed[i];
      }
#pragma GCC unroll 16
      for (int i = 0; i < kWidth; ++i) store(to + (d + i) * kBlock + r, rows[i]);
    }
  }
}

}  // namespace tessera::kernels::TESSERA_ISA_NAMESPACE
