// The product of cpu/attention_tiles.h for bfloat16 by a processor's matrix unit (Intel's AMX): 8 x 16 sums from 32 of the depth at
// once, where a vector instruction adds two of the depth to 16 sums. The layouts are the same: `paired` is what the unit reads as a
// right factor.
// Include it only through attention_tiles.h.
#pragma once

#include "tessera/kernels/cpu/amx.h"

namespace tessera::kernels::TESSERA_ISA_NAMESPACE {

inline constexpr int64_t kTileSteps = 16;   ///< of the depth, in a tile
inline constexpr int64_t kTileVectors = 4;  ///< of columns, whose sums are kept at once

/// While it lives, this thread's tiles 0 to 3 are sums [kStrip, 16], 4 a left factor [kStrip, 16 steps] and 5 a right one [16 steps, 16].
struct TileScope : AmxTiles {
  TileScope() : AmxTiles({kStrip, kStrip, kStrip, kStrip, kStrip, kTileSteps}) {}
};

/// `count` steps, zeros after them.
TESSERA_INLINE Vec load_first_steps(const Bf16* p, int64_t count) {
  const auto kept = static_cast<__mmask16>(count >= kWidth ? 0xffffu : (1u << count) - 1);
  return (Vec)_mm512_maskz_loadu_epi32(kept, p);
}

/// Steps [step, step + count) of a left factor as rows that lie together, zeros after them.
TESSERA_INLINE void gather_left(Left<Bf16> a, int64_t step, int64_t count, Bf16* to) {
  constexpr int64_t kRow = kTileSteps * kDepth<Bf16>;
  if (a.step_stride == kDepth<Bf16>) {
    for (int64_t i = 0; i < kStrip; ++i) {
      store_steps(to + i * kRow,
                  load_first_steps(a.data + i * a.row_stride + step * kDepth<Bf16>, count));
    }
    return;
  }
  // Rows are neighbours: the transpose of [steps, kStrip].
  Vec rows[kWidth];
#pragma GCC unroll 16
  for (int i = 0; i < kWidth; ++i) {
    rows[i] = i < count ? load_first_steps(a.data + (step + i) * a.step_stride, kStrip) : Vec{};
  }
  transpose(rows);
#pragma GCC unroll 8
  for (int64_t i = 0; i < kStrip; ++i) store_steps(to + i * kRow, rows[i]);
}

/// Adds a tile of the depth of each of N vectors of columns to the sums.
template <int N>
TESSERA_INLINE void add_tiles(const Bf16* left, int64_t left_bytes, const Bf16* right,
                              int64_t right_bytes) {
  constexpr int64_t kNext = kWidth * kDepth<Bf16>;
  _tile_loadd(4, left, left_bytes);
  _tile_loadd(5, right, right_bytes);
  _tile_dpbf16ps(0, 4, 5);
  if constexpr (N > 1) {
    _tile_loadd(5, right + kNext, right_bytes);
    _tile_dpbf16ps(1, 4, 5);
  }
  if constexpr (N > 2) {
    _tile_loadd(5, right + 2 * kNext, right_bytes);
    _tile_dpbf16ps(2, 4, 5);
  }
  if constexpr (N > 3) {
    _tile_loadd(5, right + 3 * kNext, right_bytes);
    _tile_dpbf16ps(3, 4, 5);
  }
}

template <int N, bool kAccumulate>
TESSERA_INLINE void begin_sums(const float* c, int64_t bytes) {
  if constexpr (kAccumulate) {
    _tile_loadd(0, c, bytes);
    if constexpr (N > 1) _tile_loadd(1, c + kWidth, bytes);
    if constexpr (N > 2) _tile_loadd(2, c + 2 * kWidth, bytes);
    if constexpr (N > 3) _tile_loadd(3, c + 3 * kWidth, bytes);
  } else {
    _tile_zero(0);
    if constexpr (N > 1) _tile_zero(1);
    if constexpr (N > 2) _tile_zero(2);
    if constexpr (N > 3) _tile_zero(3);
  }
}

template <int N>
TESSERA_INLINE void end_sums(float* c, int64_t bytes) {
  _tile_stored(0, c, bytes);
  if constexpr (N > 1) _tile_stored(1, c + kWidth, bytes);
  if constexpr (N > 2) _tile_stored(2, c + 2 * kWidth, bytes);
  if constexpr (N > 3) _tile_stored(3, c + 3 * kWidth, bytes);
}

template <int N, bool kAccumulate>
[[gnu::noinline]] void multiply_tiles(Left<Bf16> a, int64_t steps, const Bf16* b, int64_t b_stride,
                                      float* c, int64_t c_stride) {
  constexpr int64_t kBytes = sizeof(Bf16), kRow = kWidth * kDepth<Bf16>;
  alignas(64) Bf16 left[kStrip * kTileSteps * kDepth<Bf16>];
  const bool plain = a.step_stride == kDepth<Bf16>;
  memory_is_used();
  begin_sums<N, kAccumulate>(c, c_stride * static_cast<int64_t>(sizeof(float)));
  int64_t step = 0;
  for (; step + kTileSteps <= steps; step += kTileSteps) {
    const Bf16* right = b + step * b_stride;
    if (plain) {
      add_tiles<N>(a.data + step * kDepth<Bf16>, a.row_stride * kBytes, right, b_stride * kBytes);
    } else {
      gather_left(a, step, kTileSteps, left);
      memory_is_used();
      add_tiles<N>(left, kTileRowBytes, right, b_stride * kBytes);
    }
  }
  if (const int64_t count = steps - step; count > 0) {
    // What lies after the last step may be anything, and is not to be multiplied even with zeros.
    alignas(64) Bf16 right[kTileSteps * N * kRow];
    for (int64_t i = 0; i < kTileSteps; ++i) {
      for (int64_t j = 0; j < N * kRow; j += kRow) {
        store_steps(right + i * N * kRow + j,
                    i < count ? load_steps(b + (step + i) * b_stride + j) : Vec{});
      }
    }
    gather_left(a, step, count, left);
    memory_is_used();
    add_tiles<N>(left, kTileRowBytes, right, N * kRow * kBytes);
  }
  end_sums<N>(c, c_stride * static_cast<int64_t>(sizeof(float)));
  memory_is_used();
}

/// The same as for other factors. To be called within a TileScope.
template <bool kAccumulate>
void multiply(Left<Bf16> a, int64_t depth, const Bf16* b, int64_t columns, float* c,
              int64_t c_stride, int64_t vectors) {
  const int64_t steps = (depth + kDepth<Bf16> - 1) / kDepth<Bf16>, stride = columns * kDepth<Bf16>;
  constexpr int64_t kColumns = kTileVectors * kWidth;
  for (; vectors > kTileVectors;
       vectors -= kTileVectors, b += kColumns * kDepth<Bf16>, c += kColumns) {
    multiply_tiles<kTileVectors, kAccumulate>(a, steps, b, stride, c, c_stride);
  }
  switch (vectors) {
    case 4:
      return multiply_tiles<4, kAccumulate>(a, steps, b, stride, c, c_stride);
    case 3:
      return multiply_tiles<3, kAccumulate>(a, steps, b, stride, c, c_stride);
    case 2:
      return multiply_tiles<2, kAccumulate>(a, steps, b, stride, c, c_stride);
    case 1:
      return multiply_tiles<1, kAccumulate>(a, steps, b, stride, c, c_stride);
    default:
      return;
  }
}

}  // namespace tessera::kernels::TESSERA_ISA_NAMESPACE
