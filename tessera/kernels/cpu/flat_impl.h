// AdamW, stochastic rounding, dropout and sums of squares in vector types. Included once per
// instruction set; see flat_kernel.h for what each computes.
#pragma once

#include "tessera/kernels/cpu/flat_kernel.h"
#include "tessera/kernels/cpu/vec_math.h"

namespace tessera::kernels::TESSERA_ISA_NAMESPACE {
namespace {

// --- Random bits.

/// Wellons' lowbias32: every input bit flips every output bit with a probability near 1/2.
TESSERA_INLINE BitsVec mixed(BitsVec x) {
  x ^= x >> 16;
  x *= splat_bits(0x7feb352du);
  x ^= x >> 15;
  x *= splat_bits(0x846ca68bu);
  return x ^ (x >> 16);
}

/// 32 bits for each of the elements i, i + 1, ..
TESSERA_INLINE BitsVec bits_at(const RandomBits& bits, int64_t i) {
  const uint64_t position = static_cast<uint64_t>(bits.first + i);
  BitsVec lanes;
  for (int lane = 0; lane < kWidth; ++lane) lanes[lane] = static_cast<uint32_t>(lane);
  const BitsVec first = splat_bits(static_cast<uint32_t>(position));
  const BitsVec low = first + lanes;
  const BitsVec high = splat_bits(static_cast<uint32_t>(position >> 32)) - (BitsVec)(low < first);
  return mixed(mixed(low ^ bits.key[0]) + high * 0x9e3779b1u + bits.key[1]);
}

/// `v` up or down to a bfloat16, up with the probability that makes the mean v: adds 16 random bits
/// below the last one kept.
TESSERA_INLINE Vec rounded_stochastically(Vec v, const Bf16*, BitsVec bits16) {
  const Vec rounded = (Vec)(((BitsVec)v + bits16) & 0xffff0000u);
  return v - v == 0.0f ? rounded : v;  // infinity and NaN as they are
}

/// `size` up or down at random to a number without the last kDropped bits of its mantissa: adds that many
/// random bits, and to what is below 2^kSmallest, the smallest normal number, a part of a subnormal's step.
template <int kDropped, int kSmallest>
TESSERA_INLINE BitsVec rounded_up_or_down(BitsVec size, BitsVec random) {
  constexpr uint32_t kSmallestBits = (127 + kSmallest) << 23;
  constexpr float kStep = __builtin_bit_cast(float, kSmallestBits - ((23 - kDropped) << 23));
  const Vec up = __builtin_convertvector((IntVec)random, Vec) * (1.0f / (1 << kDropped));
  const Vec small = size < kSmallestBits ? (Vec)size * (1 / kStep) + up : Vec{};
  const Vec steps = __builtin_convertvector(__builtin_convertvector(small, IntVec), Vec) * kStep;
  const BitsVec normal = (size + random) & ~((1u << kDropped) - 1);
  return size < kSmallestBits ? (BitsVec)steps : normal;
}

TESSERA_INLINE Vec rounded_stochastically(Vec v, const Half*, BitsVec bits16) {
  const BitsVec size = rounded_up_or_down<13, -14>((BitsVec)v & 0x7fffffffu, bits16 >> 3);
  return v - v == 0.0f ? (Vec)(size | ((BitsVec)v & 0x80000000u)) : v;
}

/// What is larger than the largest becomes that.
TESSERA_INLINE Vec rounded_stochastically(Vec v, const E4M3*, BitsVec bits16) {
  const Vec bounded = min(abs(v), splat(448.0f));
  const BitsVec size = rounded_up_or_down<20, -6>((BitsVec)bounded, bits16 << 4);
  return v == v ? (Vec)(size | ((BitsVec)v & 0x80000000u)) : v;
}

// --- AdamW.

TESSERA_INLINE Vec square_root(Vec v) {
#if defined(__AVX512F__)
  return (Vec)_mm512_maskz_sqrt_ps(0xffff, (__m512)v);
#else
  Vec root;
  for (int i = 0; i < kWidth; ++i) root[i] = __builtin_sqrtf(v[i]);
  return root;
#endif
}

TESSERA_INLINE Vec for_store(Vec v, const float*, bool, BitsVec) { return v; }
TESSERA_INLINE Vec for_store(Vec v, const Bf16* to, bool stochastic, BitsVec bits16) {
  return stochastic ? rounded_stochastically(v, to, bits16) : v;
}

template <typename P, typename G, typename S, typename Access>
TESSERA_INLINE void adamw_vector(const AdamWArgs& args, int64_t i, Access access) {
  P* parameter = static_cast<P*>(args.parameter) + i;
  S* exp_avg = static_cast<S*>(args.exp_avg) + i;
  S* exp_avg_sq = static_cast<S*>(args.exp_avg_sq) + i;
  const Vec g = access.load(static_cast<const G*>(args.gradient) + i) * args.gradient_scale;
  Vec m = access.load(exp_avg);
  m += (g - m) * args.blend;
  const Vec v = access.load(exp_avg_sq) * args.beta_sq + g * g * args.blend_sq;
  const Vec denominator = square_root(v) * args.reciprocal_root + args.eps;
  const Vec p = access.load(parameter) * args.keep - args.step_size * m / denominator;
  BitsVec bits = {}, state_bits = {};
  if (args.stochastic) {
    bits = bits_at(args.bits, i);
    state_bits = mixed(bits ^ 0x5bd1e995u);
  }
  access.store(parameter, for_store(p, parameter, args.stochastic, bits >> 16));
  access.store(exp_avg, for_store(m, exp_avg, args.stochastic, state_bits >> 16));
  access.store(exp_avg_sq, for_store(v, exp_avg_sq, args.stochastic, state_bits & 0xffffu));
  if (args.copy != nullptr) access.store(static_cast<Bf16*>(args.copy) + i, p);
}

template <typename P, typename G, typename S>
void adamw(const AdamWArgs& given, int64_t begin, int64_t end) {
  const AdamWArgs args = given;  // a copy: no store can change it
  for_each_vector(
      begin, end, [&](int64_t i, auto access) __attribute__((always_inline)) {
        adamw_vector<P, G, S>(args, i, access);
      });
}

template <typename T>
void round_stochastically(const float* from, void* to_data, const RandomBits& bits, int64_t begin,
                          int64_t end) {
  T* to = static_cast<T*>(to_data);
  for_each_vector(
      begin, end, [&](int64_t i, auto access) __attribute__((always_inline)) {
        access.store(to + i,
                     rounded_stochastically(access.load(from + i), to, bits_at(bits, i) >> 16));
      });
}

// --- Dropout.

template <typename T>
void drop(const DropArgs& given, int64_t begin, int64_t end) {
  const DropArgs args = given;
  const T* x = static_cast<const T*>(args.x);
  T* y = static_cast<T*>(args.y);
  const BitsVec threshold = splat_bits(args.threshold);
  for_each_vector(
      begin, end, [&](int64_t i, auto access) __attribute__((always_inline)) {
        const BitsVec kept = (BitsVec)(bits_at(args.bits, i) >= threshold);  // all ones, or zero
        access.store(y + i, (Vec)((BitsVec)(access.load(x + i) * args.scale) & kept));
      });
}

// --- Sums of squares.

// Of four lanes: GCC passes what is wider than the registers of an instruction set through memory.
using Floats4 = float __attribute__((vector_size(16)));
using Bits4 = uint32_t __attribute__((vector_size(16)));
using Halves4 = uint16_t __attribute__((vector_size(8)));
using Doubles4 = double __attribute__((vector_size(32)));

TESSERA_INLINE Floats4 load4(const float* p) {
  Floats4 v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}
TESSERA_INLINE Floats4 load4(const Bf16* p) {
  Halves4 h;
  __builtin_memcpy(&h, p, sizeof h);
  return (Floats4)(__builtin_convertvector(h, Bits4) << 16);
}
TESSERA_INLINE Floats4 load4(const Half* p) {
  Halves4 h;
  __builtin_memcpy(&h, p, sizeof h);
  const Bits4 bits = __builtin_convertvector(h, Bits4) & 0x7fffu;  // a square needs no sign
  const Floats4 finite = (Floats4)(bits << 13) * 0x1p112f;         // subnormals, too
  return bits >= 0x7c00u ? (Floats4)((bits << 13) | 0x7f800000u) : finite;
}

template <typename T>
double squares_of(const void* data, int64_t count) {
  const T* values = static_cast<const T*>(data);
  Doubles4 low = {}, high = {};
  const auto add = [&](const T* eight) __attribute__((always_inline)) {
    const Doubles4 first = __builtin_convertvector(load4(eight), Doubles4);
    const Doubles4 second = __builtin_convertvector(load4(eight + 4), Doubles4);
    low += first * first;  // the product is exact: a fused one gives the same bits
    high += second * second;
  };
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) add(values + i);
  if (i < count) {
    T rest[8] = {};
    for (int64_t k = 0; i + k < count; ++k) rest[k] = values[i + k];
    add(rest);
  }
  double sum = 0;
  for (int lane = 0; lane < 4; ++lane) sum += low[lane];
  for (int lane = 0; lane < 4; ++lane) sum += high[lane];
  return sum;
}

}  // namespace

extern constexpr FlatTable flat_table = {
    {{{adamw<float, float, float>, adamw<float, float, Bf16>},
      {adamw<float, Bf16, float>, adamw<float, Bf16, Bf16>}},
     {{adamw<Bf16, float, float>, adamw<Bf16, float, Bf16>},
      {adamw<Bf16, Bf16, float>, adamw<Bf16, Bf16, Bf16>}}},
    {round_stochastically<Bf16>, round_stochastically<Half>, round_stochastically<E4M3>},
    {drop<float>, drop<Bf16>, drop<Half>},
    squares_of<float>,
    squares_of<Bf16>,
    squares_of<Half>,
};

}  // namespace tessera::kernels::TESSERA_ISA_NAMESPACE
