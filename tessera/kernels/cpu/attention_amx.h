// The product of cpu/attention_tiles.h for bfloat16 by a processor's matrix unit (Intel's AMX): 32 x 32 sums from 32 of the depth at once,
// where a vector instruction adds two of the depth to 16 sums. The layouts are the same: `paired` is what the unit reads as a right factor.
// Include it only through attention_tiles.h.
#pragma once

#include "tessera/kernels/cpu/amx.h"

namespace tessera::kernels::TESSERA_ISA_NAMESPACE {

inline constexpr int64_t kTileSteps = 16;  ///< of the depth, in a tile

using TileScope = AmxTiles;

/// `count` steps, zeros after them.
TESSERA_INLINE Vec load_first_steps(const Bf16* p, int64_t count) {
  const auto kept = static_cast<__mmask16>(count >= kWidth ? 0xffffu : (1u << count) - 1);
  return (Vec)_mm512_maskz_loadu_epi32(kept, p);
}

/// A left factor of at most kBlock of depth, with its steps together and zeros behind them, in whole tiles.
TESSERA_INLINE Left<Bf16> gathered(Left<Bf16> a, int64_t steps, Bf16* to) {
  for (int64_t row = 0; row < kStrip<Bf16>; row += kTileRows) {
    for (int64_t step = 0; step < steps; step += kTileSteps) {
      const int64_t count = min_of(kTileSteps, steps - step);
      Vec rows[kWidth];
      if (a.step_stride == kDepth<Bf16>) {
#pragma GCC unroll 16
        for (int i = 0; i < kWidth; ++i) {
          rows[i] =
              load_first_steps(a.data + (row + i) * a.row_stride + step * kDepth<Bf16>, count);
        }
      } else {  // its rows are neighbours
#pragma GCC unroll 16
        for (int i = 0; i < kWidth; ++i) {
          const Bf16* run = a.data + (step + i) * a.step_stride + row * kDepth<Bf16>;
          rows[i] = i < count ? load_steps(run) : Vec{};
        }
        transpose(rows);
      }
#pragma GCC unroll 16
      for (int i = 0; i < kWidth; ++i) {
        store_steps(to + (row + i) * kBlock + step * kDepth<Bf16>, rows[i]);
      }
    }
  }
  return {to, kBlock, kDepth<Bf16>};
}

/// Sums += a [kStrip, tiles of the depth] * b [.., N vectors], whose steps are b_stride numbers apart.
template <int N>
TESSERA_INLINE void add_tiles(Left<Bf16> a, int64_t tiles, const Bf16* b, int64_t b_stride) {
  constexpr int64_t kBytes = sizeof(Bf16);
  for (; tiles > 0; --tiles, a.data += kUnit, b += kTileSteps * b_stride) {
    add_unit<N>({a.data, a.data + kTileRows * a.row_stride, a.row_stride * kBytes},
                {b, b + kUnit, b_stride * kBytes});
  }
}

/// `a` has its steps together, and zeros behind them in its last tile.
template <int N, bool kAccumulate>
[[gnu::noinline]] void multiply_columns(Left<Bf16> a, int64_t steps, const Bf16* b,
                                        int64_t b_stride, float* c, int64_t c_stride) {
  memory_is_used();
  if constexpr (kAccumulate) {
    load_sums<N>(c, c_stride);
  } else {
    clear_sums<N>();
  }
  const int64_t tiles = steps / kTileSteps, whole = tiles * kTileSteps;
  add_tiles<N>(a, tiles, b, b_stride);
  if (const int64_t count = steps - whole; count > 0) {
    // What lies after the last step may be anything, and is not to be multiplied even with zeros.
    alignas(64) Bf16 rest[kTileSteps * N * kUnit];
    for (int64_t i = 0; i < kTileSteps; ++i) {
      for (int64_t j = 0; j < N * kUnit; j += kUnit) {
        store_steps(rest + i * N * kUnit + j,
                    i < count ? load_steps(b + (whole + i) * b_stride + j) : Vec{});
      }
    }
    memory_is_used();
    add_tiles<N>({a.data + whole * kDepth<Bf16>, a.row_stride, a.step_stride}, 1, rest, N * kUnit);
  }
  store_sums<N>(c, c_stride);
  memory_is_used();
}

/// The same as for other factors. A depth above kBlock is one of whole tiles, and its `a` has its steps together. To be called within a
/// TileScope.
template <bool kAccumulate>
void multiply(Left<Bf16> a, int64_t depth, const Bf16* b, int64_t columns, float* c,
              int64_t c_stride, int64_t vectors) {
  const int64_t steps = (depth + kDepth<Bf16> - 1) / kDepth<Bf16>, stride = columns * kDepth<Bf16>;
  alignas(64) Bf16 numbers[kStrip<Bf16> * kBlock];
  if (a.step_stride != kDepth<Bf16> || steps % kTileSteps != 0) a = gathered(a, steps, numbers);
  for (; vectors > 1; vectors -= 2, b += 2 * kUnit, c += 2 * kWidth) {
    multiply_columns<2, kAccumulate>(a, steps, b, stride, c, c_stride);
  }
  if (vectors == 1) multiply_columns<1, kAccumulate>(a, steps, b, stride, c, c_stride);
}

}  // namespace tessera::kernels::TESSERA_ISA_NAMESPACE
