// Weights of 4 and 8 bits in vector types. Included once per instruction set; see
// quantised_kernel.h for what each function computes.
#pragma once

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "tessera/kernels/cpu/quantised_kernel.h"
#include "tessera/kernels/cpu/vec_math.h"

namespace tessera::kernels::TESSERA_ISA_NAMESPACE {
namespace {

using SignedByteVec = int8_t __attribute__((vector_size(kWidth)));

TESSERA_INLINE IntVec widened(const uint8_t* bytes) {
  ByteVec v;
  __builtin_memcpy(&v, bytes, sizeof v);
#if defined(__AVX512F__)
  return (IntVec)_mm512_maskz_cvtepu8_epi32(0xffff, (__m128i)v);
#else
  return __builtin_convertvector(v, IntVec);
#endif
}
TESSERA_INLINE Vec widened(const int8_t* bytes) {
  SignedByteVec v;
  __builtin_memcpy(&v, bytes, sizeof v);
#if defined(__AVX512F__)
  return (Vec)_mm512_maskz_cvtepi32_ps(0xffff, _mm512_maskz_cvtepi8_epi32(0xffff, (__m128i)v));
#else
  return __builtin_convertvector(__builtin_convertvector(v, IntVec), Vec);
#endif
}

/// The 16 values of a code, in registers where there are instructions to pick from them.
struct Values {
#if defined(__AVX512F__)
  __m512 all;
  TESSERA_INLINE explicit Values(const float* values) : all(_mm512_loadu_ps(values)) {}
  /// The value of the low four bits of each lane.
  TESSERA_INLINE Vec of(IntVec codes) const {
    return (Vec)_mm512_maskz_permutexvar_ps(0xffff, (__m512i)codes, all);
  }
#elif defined(__AVX2__)
  __m256 low, high;
  TESSERA_INLINE explicit Values(const float* values)
      : low(_mm256_loadu_ps(values)), high(_mm256_loadu_ps(values + 8)) {}
  TESSERA_INLINE Vec of(IntVec codes) const {
    const auto at = (__m256i)codes;
    return (Vec)_mm256_blendv_ps(_mm256_permutevar8x32_ps(low, at),
                                 _mm256_permutevar8x32_ps(high, at), (__m256)(codes << 28));
  }
#else
  const float* all;
  TESSERA_INLINE explicit Values(const float* values) : all(values) {}
  TESSERA_INLINE Vec of(IntVec codes) const {
    Vec v;
    for (int i = 0; i < kWidth; ++i) v[i] = all[codes[i] & 15];
    return v;
  }
#endif
};

/// a0 b0 a1 b1 .. in two vectors.
TESSERA_INLINE void interleave(Vec a, Vec b, Vec& first, Vec& second) {
#if defined(__AVX512F__)
  first = __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  second =
      __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
#elif defined(__AVX2__)
  first = __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
  second = __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
#else
  first = __builtin_shufflevector(a, b, 0, 4, 1, 5);
  second = __builtin_shufflevector(a, b, 2, 6, 3, 7);
#endif
}

TESSERA_INLINE void put_one(float* place, float x) { *place = x; }
TESSERA_INLINE void put_one(Bf16* place, float x) { store_partial(place, splat(x), 1); }

/// a0 b0 a1 b1 .. at `out`.
template <typename Y>
TESSERA_INLINE void store_interleaved(Y* out, Vec a, Vec b) {
  Vec first, second;
  interleave(a, b, first, second);
  store(out, first);
  store(out + kWidth, second);
}
#if defined(__AVX512BF16__)
/// Half the shuffles: they are made of the narrow numbers.
TESSERA_INLINE void store_interleaved(Bf16* out, Vec a, Vec b) {
  using Lanes = short __attribute__((vector_size(64)));  // NOLINT(google-runtime-int)
  const auto both = (Lanes)_mm512_cvtne2ps_pbh((__m512)b, (__m512)a);
  const Lanes order = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                       8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  const auto placed = _mm512_maskz_permutexvar_epi16(~0u, (__m512i)order, (__m512i)both);
  __builtin_memcpy(out, &placed, sizeof placed);
}
#endif

/// Elements [begin, end) of the flattened weight, which lie in one block of this scale.
template <typename Y>
TESSERA_INLINE void dequantise_run(const FourBitArgs& args, const Values& values, float scale,
                                   int64_t begin, int64_t end, Y* out) {
  const auto one = [&](int64_t i) __attribute__((always_inline)) {
    const uint8_t byte = args.codes[i / 2];
    put_one(out++, args.values[i % 2 == 0 ? byte >> 4 : byte & 15] * scale);
  };
  int64_t i = begin;
  if (i % 2 != 0 && i < end) one(i++);
  for (; i + 2 * kWidth <= end; i += 2 * kWidth, out += 2 * kWidth) {
    const IntVec bytes = widened(args.codes + i / 2);
    store_interleaved(out, values.of(bytes >> 4) * scale, values.of(bytes & 15) * scale);
  }
  for (; i < end; ++i) one(i);
}

template <typename Y>
void dequantise_4bit(const FourBitArgs& args, const TileArgs& tile) {
  const Values values(args.values);
  for (int64_t row = tile.first; row < tile.last; ++row) {
    Y* out = static_cast<Y*>(tile.out) + (row - tile.first) * tile.count;
    int64_t at = row * tile.depth + tile.begin;
    const int64_t end = at + tile.count;
    int64_t block = at / args.block;
    const float* scale = args.absmax + (block - args.first_block);
    while (at < end) {
      const int64_t block_end = ++block * args.block;
      const int64_t stop = block_end < end ? block_end : end;
      dequantise_run(args, values, *scale++, at, stop, out);
      out += stop - at;
      at = stop;
    }
  }
}

template <typename Y>
void dequantise_8bit(const EightBitArgs& args, const TileArgs& tile) {
  for (int64_t row = tile.first; row < tile.last; ++row) {
    Y* out = static_cast<Y*>(tile.out) + (row - tile.first) * tile.count;
    const int8_t* codes = args.codes + row * tile.depth + tile.begin;
    const float scale = args.absmax[row - args.first];
    int64_t i = 0;
    for (; i + kWidth <= tile.count; i += kWidth) {
      store(out + i, widened(codes + i) * scale * kInt8Reciprocal);
    }
    for (; i < tile.count; ++i)
      put_one(out + i, static_cast<float>(codes[i]) * scale * kInt8Reciprocal);
  }
}

/// Columns [column, column + C) of R rows: each vector of x is read once for C of them.
template <int R, int C>
TESSERA_INLINE void dot_4bit(const FourBitArgs& args, const Values& values,
                             const FewRowsArgs& product, int64_t column) {
  const int64_t bytes = product.depth / 2, block_bytes = args.block / 2;
  const uint8_t* codes = args.codes + column * bytes;
  const float* absmax = args.absmax + (column * product.depth / args.block - args.first_block);
  const int64_t blocks = product.depth / args.block;
  Vec totals[C][R] = {};
  for (int64_t b = 0; b < blocks; ++b) {
    Vec sums[C][R] = {};
    for (int64_t i = b * block_bytes; i < (b + 1) * block_bytes; i += kWidth) {
      Vec even[R], odd[R];
      for (int r = 0; r < R; ++r) {
        even[r] = load(product.even + r * bytes + i);
        odd[r] = load(product.odd + r * bytes + i);
      }
      for (int c = 0; c < C; ++c) {
        const IntVec pairs = widened(codes + c * bytes + i);
        const Vec first = values.of(pairs >> 4), second = values.of(pairs);
        for (int r = 0; r < R; ++r) sums[c][r] += first * even[r] + second * odd[r];
      }
    }
    for (int c = 0; c < C; ++c) {
      const float scale = absmax[c * blocks + b];
      for (int r = 0; r < R; ++r) totals[c][r] += sums[c][r] * scale;
    }
  }
  for (int c = 0; c < C; ++c) {
    for (int r = 0; r < R; ++r)
      product.out[r * product.columns + column + c] = sum_of(totals[c][r]);
  }
}

template <int R>
void few_rows_4bit_of(const FourBitArgs& args, const FewRowsArgs& product) {
  constexpr int kTogether = R <= 2 ? 4 : 2;
  const Values values(args.values);
  int64_t column = product.begin;
  for (; column + kTogether <= product.end; column += kTogether) {
    dot_4bit<R, kTogether>(args, values, product, column);
  }
  for (; column < product.end; ++column) dot_4bit<R, 1>(args, values, product, column);
}

template <int R>
void few_rows_8bit_of(const EightBitArgs& args, const FewRowsArgs& product) {
  const int64_t depth = product.depth;
  for (int64_t column = product.begin; column < product.end; ++column) {
    const int8_t* codes = args.codes + column * depth;
    Vec sums[2][R] = {};
    for (int64_t i = 0; i < depth; i += 2 * kWidth) {
      for (int half = 0; half < 2; ++half) {
        const Vec numbers = widened(codes + i + half * kWidth);
        for (int r = 0; r < R; ++r) {
          sums[half][r] += numbers * load(product.even + r * depth + i + half * kWidth);
        }
      }
    }
    for (int r = 0; r < R; ++r) {
      product.out[r * product.columns + column] =
          sum_of(sums[0][r] + sums[1][r]) * (args.absmax[column - args.first] * kInt8Reciprocal);
    }
  }
}

void few_rows_4bit(const FourBitArgs& args, const FewRowsArgs& product) {
  static_assert(kQuantisedGemvRows == 4);
  switch (product.rows) {
    case 1:
      return few_rows_4bit_of<1>(args, product);
    case 2:
      return few_rows_4bit_of<2>(args, product);
    case 3:
      return few_rows_4bit_of<3>(args, product);
    default:
      return few_rows_4bit_of<4>(args, product);
  }
}

void few_rows_8bit(const EightBitArgs& args, const FewRowsArgs& product) {
  switch (product.rows) {
    case 1:
      return few_rows_8bit_of<1>(args, product);
    case 2:
      return few_rows_8bit_of<2>(args, product);
    case 3:
      return few_rows_8bit_of<3>(args, product);
    default:
      return few_rows_8bit_of<4>(args, product);
  }
}

/// The code of each lane: how many bounds are below it, in their order.
TESSERA_INLINE IntVec codes_of(const QuantiseArgs& args, Vec x) {
  IntVec below = {};
  for (int k = 0; k < 15; ++k) below -= (IntVec)(x > args.bounds[k]);
  return below;
}

void quantise_4bit(const QuantiseArgs& args, const float* x, int64_t count, float* absmax,
                   uint8_t* codes) {
  constexpr float kSmallest = 1e-38f;
  for (int64_t begin = 0; begin < count; begin += args.block) {
    const bool whole = begin + args.block <= count;
    const int64_t end = whole ? begin + args.block : count;
    Vec largest = {};
    for_each_vector(
        begin, end, [&](int64_t i, auto part) __attribute__((always_inline)) {
          largest = max(largest, abs(part.load(x + i)));
        });
    const float most = max_of(largest);
    const float bounded = most > kSmallest ? most : kSmallest;
    *absmax++ = whole ? most : bounded;
    const float inverse = 1.0f / bounded;
    for_each_vector(
        begin, end, [&](int64_t i, auto part) __attribute__((always_inline)) {
          const Vec v = part.load(x + i);
          // The peer divides in a last block that is shorter.
          const IntVec found = codes_of(args, whole ? v * inverse : v / bounded);
          for (int lane = 0; lane < kWidth && i + lane < end; lane += 2) {
            const uint8_t second = i + lane + 1 < end ? args.order[found[lane + 1]]
                                                      : args.order[codes_of(args, Vec{})[0]];
            codes[(i + lane) / 2] = static_cast<uint8_t>(args.order[found[lane]] << 4 | second);
          }
        });
  }
}

}  // namespace

extern constexpr QuantisedTable quantised_table = {
    .dequantise_4bit = {dequantise_4bit<float>, dequantise_4bit<Bf16>},
    .dequantise_8bit = {dequantise_8bit<float>, dequantise_8bit<Bf16>},
    .few_rows_4bit = few_rows_4bit,
    .few_rows_8bit = few_rows_8bit,
    .quantise_4bit = quantise_4bit};

}  // namespace tessera::kernels::TESSERA_ISA_NAMESPACE
