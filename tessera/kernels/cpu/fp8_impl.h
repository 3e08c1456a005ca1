// Rounding to E4M3 and E5M2 in vector types. Included once per instruction set; see fp8_kernel.h for
// what each computes.
#pragma once

#include "tessera/kernels/cpu/fp8_kernel.h"
#include "tessera/kernels/cpu/vec_math.h"

namespace tessera::kernels::TESSERA_ISA_NAMESPACE {
namespace {

template <bool kE5M2>
inline constexpr Fp8Layout kLayout = kE5M2 ? kE5M2Layout : kE4M3Layout;

/// `v` rounded to nearest even among the numbers of the type, larger ones to the largest; a NaN stays
/// one. The product that `v` may be is rounded first: bits are taken of it in between.
template <bool kE5M2>
TESSERA_INLINE Vec rounded(Vec v) {
  constexpr auto& layout = kLayout<kE5M2>;
  constexpr int kDropped = 23 - layout.mantissa_bits;
  const BitsVec sign = (BitsVec)v & 0x80000000u;
  const Vec size = (Vec)((BitsVec)v & 0x7fffffffu);
  const Vec bounded = min(size, splat(layout.largest));
  const BitsVec bits = (BitsVec)bounded;
  const BitsVec half = splat_bits((1u << (kDropped - 1)) - 1);
  const Vec normal = (Vec)((bits + half + ((bits >> kDropped) & 1u)) & ~((1u << kDropped) - 1));
  const Vec subnormal = (bounded + layout.subnormal_magic) - layout.subnormal_magic;
  const Vec result = bounded < layout.smallest_normal ? subnormal : normal;
  return v == v ? (Vec)((BitsVec)result | sign) : v;
}

/// The codes of `v`, in the low bits of each lane.
template <bool kE5M2, bool kSaturate>
TESSERA_INLINE BitsVec codes_of(Vec v) {
  constexpr auto& layout = kLayout<kE5M2>;
  constexpr int kDropped = 23 - layout.mantissa_bits;
  constexpr uint32_t kBias = (kE5M2 ? 15u - 127u : 7u - 127u) << 23;
  const BitsVec sign = ((BitsVec)v >> 24) & 0x80u;
  const BitsVec bits = (BitsVec)v & 0x7fffffffu;
  BitsVec used = bits;
  if (kSaturate) used = (BitsVec)min((Vec)bits, splat(layout.largest));
  const BitsVec normal =
      (used + kBias + ((1u << (kDropped - 1)) - 1) + ((used >> kDropped) & 1u)) >> kDropped;
  const BitsVec subnormal = (BitsVec)((Vec)used + layout.subnormal_magic) -
                            __builtin_bit_cast(uint32_t, layout.subnormal_magic);
  BitsVec code = (Vec)used < layout.smallest_normal ? subnormal : normal;
  if (!kSaturate)
    code = (Vec)bits >= __builtin_bit_cast(float, layout.overflow_bits)
               ? splat_bits(layout.overflow_code)
               : code;
  code = v == v ? code : splat_bits(0x7f);
  return code | sign;
}

/// The numbers of codes in the low bits of each lane.
template <bool kE5M2>
TESSERA_INLINE Vec numbers_of(BitsVec codes) {
  constexpr auto& layout = kLayout<kE5M2>;
  constexpr int kDropped = 23 - layout.mantissa_bits;
  const BitsVec sign = (codes & 0x80u) << 24;
  const BitsVec size = codes & 0x7fu;
  // The exponent is moved by a product, which makes subnormals normal.
  const Vec finite = (Vec)(size << kDropped) * (kE5M2 ? 0x1p112f : 0x1p120f);
  const BitsVec special = kE5M2 ? (size << kDropped) | 0x7f800000u : splat_bits(0x7fc00000u);
  const BitsVec first_special = splat_bits(kE5M2 ? 0x7cu : 0x7fu);
  return (Vec)((size >= first_special ? special : (BitsVec)finite) | sign);
}

// --- The largest.

template <typename T>
float amax(const void* data, int64_t count) {
  const T* x = static_cast<const T*>(data);
  Vec largest = {};
  for_each_vector(
      0, count, [&](int64_t i, auto access) __attribute__((always_inline)) {
        largest = max(abs(access.load(x + i)), largest);
      });
  return max_of(largest);
}

template <typename T>
void amax_of_columns(const void* data, int64_t count, float* largest) {
  const T* x = static_cast<const T*>(data);
  for_each_vector(
      0, count, [&](int64_t i, auto access) __attribute__((always_inline)) {
        access.store(largest + i, max(abs(access.load(x + i)), access.load(largest + i)));
      });
}

TESSERA_INLINE int64_t total_of(BitsVec counts) {
  int64_t sum = 0;
  for (int lane = 0; lane < kWidth; ++lane) sum += counts[lane];
  return sum;
}

template <typename T>
int64_t num_above(const void* data, int64_t count, float bound) {
  const T* x = static_cast<const T*>(data);
  BitsVec found = {};
  for_each_vector(
      0, count, [&](int64_t i, auto access) __attribute__((always_inline)) {
        found -= (BitsVec)(abs(access.load(x + i)) > bound);  // true is -1
      });
  return total_of(found);
}

// --- Rounding.

template <bool kE5M2, bool kCounts, typename X, typename Y>
TESSERA_INLINE int64_t round_row(const Fp8RoundArgs& args) {
  const X* x = static_cast<const X*>(args.x);
  Y* out = static_cast<Y*>(args.out);
  BitsVec lost = {};
  const auto one = [&](Vec own, Vec scale) __attribute__((always_inline)) {
    const Vec result = rounded<kE5M2>(own * scale);
    if (kCounts) lost -= (BitsVec)(own != 0.0f) & (BitsVec)(result == 0.0f);  // true is -1
    return result;
  };
  if (args.scales == nullptr) {
    for_each_vector(
        0, args.count, [&](int64_t i, auto access) __attribute__((always_inline)) {
          access.store(out + i, one(access.load(x + i), splat(args.scale)) * args.inverse);
        });
  } else {
    for_each_vector(
        0, args.count, [&](int64_t i, auto access) __attribute__((always_inline)) {
          const Vec result = one(access.load(x + i), access.load(args.scales + i));
          access.store(out + i, result * access.load(args.inverses + i));
        });
  }
  return total_of(lost);
}

template <bool kCounts, typename X, typename Y>
TESSERA_INLINE int64_t round_as(const Fp8RoundArgs& args) {
  return args.e5m2 ? round_row<true, kCounts, X, Y>(args) : round_row<false, kCounts, X, Y>(args);
}

template <typename X, typename Y>
int64_t round(const Fp8RoundArgs& given) {
  const Fp8RoundArgs args = given;  // a copy: no store can change it
  return args.counts ? round_as<true, X, Y>(args) : round_as<false, X, Y>(args);
}

// --- Codes.

TESSERA_INLINE void store_codes(uint8_t* p, BitsVec codes) {
  const ByteVec narrow = __builtin_convertvector(codes, ByteVec);
  __builtin_memcpy(p, &narrow, sizeof narrow);
}
TESSERA_INLINE BitsVec load_codes(const uint8_t* p) {
  ByteVec narrow;
  __builtin_memcpy(&narrow, p, sizeof narrow);
  return __builtin_convertvector(narrow, BitsVec);
}

template <bool kE5M2, bool kSaturate, typename T>
void encode_as(const T* x, int64_t count, float scale, uint8_t* codes) {
  int64_t i = 0;
  for (; i + kWidth <= count; i += kWidth) {
    store_codes(codes + i, codes_of<kE5M2, kSaturate>(load(x + i) * scale));
  }
  if (i == count) return;
  uint8_t rest[kWidth];
  store_codes(rest, codes_of<kE5M2, kSaturate>(load_partial(x + i, count - i) * scale));
  for (int64_t k = 0; i + k < count; ++k) codes[i + k] = rest[k];
}

template <typename T>
void encode(const void* data, int64_t count, float scale, bool e5m2, bool saturate,
            uint8_t* codes) {
  const T* x = static_cast<const T*>(data);
  if (e5m2) {
    saturate ? encode_as<true, true>(x, count, scale, codes)
             : encode_as<true, false>(x, count, scale, codes);
  } else {
    saturate ? encode_as<false, true>(x, count, scale, codes)
             : encode_as<false, false>(x, count, scale, codes);
  }
}

template <bool kE5M2, typename T>
void decode_as(const uint8_t* codes, int64_t count, float factor, T* out) {
  int64_t i = 0;
  for (; i + kWidth <= count; i += kWidth) {
    store(out + i, numbers_of<kE5M2>(load_codes(codes + i)) * factor);
  }
  if (i == count) return;
  uint8_t rest[kWidth] = {};
  for (int64_t k = 0; i + k < count; ++k) rest[k] = codes[i + k];
  store_partial(out + i, numbers_of<kE5M2>(load_codes(rest)) * factor, count - i);
}

template <typename T>
void decode(const uint8_t* codes, int64_t count, float factor, bool e5m2, void* data) {
  T* out = static_cast<T*>(data);
  e5m2 ? decode_as<true>(codes, count, factor, out) : decode_as<false>(codes, count, factor, out);
}

}  // namespace

extern constexpr Fp8Table fp8_table = {
    {amax<float>, amax<Bf16>},
    {amax_of_columns<float>, amax_of_columns<Bf16>},
    {num_above<float>, num_above<Bf16>},
    {{round<float, float>, round<float, Bf16>}, {round<Bf16, float>, round<Bf16, Bf16>}},
    {encode<float>, encode<Bf16>},
    {decode<float>, decode<Bf16>},
};

}  // namespace tessera::kernels::TESSERA_ISA_NAMESPACE
