// A processor's matrix unit (Intel's AMX): how kernels set it up and what they make of its instructions.
// Include it only from files compiled for it by tessera_isa_sources (cpu/isa.cmake).
#pragma once

#include "tessera/kernels/cpu/vec_math.h"

namespace tessera::kernels::TESSERA_ISA_NAMESPACE {

inline constexpr int64_t kTileRowBytes = 64;  ///< of every tile

/// GCC's tile instructions do not say that they read and write memory.
TESSERA_INLINE void memory_is_used() { asm volatile("" ::: "memory"); }

inline constexpr int64_t kTileRows = 16;  // of sums, and columns of them
inline constexpr int64_t kUnit = 32;      // of the depth that one instruction multiplies

/// While it lives, this thread's tiles are there: 0 to 3 for sums [2 x 16, 2 x 16], 4 and 5 for rows of a left factor, one below the other,
/// 6 and 7 for columns of a right one, side by side.
class AmxTiles {
 public:
  AmxTiles() {
    struct {
      uint8_t palette = 1, start_row = 0, reserved[14] = {};
      uint16_t row_bytes[16] = {};
      uint8_t rows[16] = {};
    } layout;
    for (int i = 0; i < 8; ++i) {
      layout.row_bytes[i] = kTileRowBytes;
      layout.rows[i] = kTileRows;
    }
    memory_is_used();
    _tile_loadconfig(&layout);
  }
  ~AmxTiles() { _tile_release(); }
  AmxTiles(const AmxTiles&) = delete;
  AmxTiles& operator=(const AmxTiles&) = delete;
};

// Of the two columns of tiles the functions below leave the second one alone where N is 1.

/// Sums = memory, whose rows are `stride` numbers apart.
template <int N = 2>
TESSERA_INLINE void load_sums(const float* sums, int64_t stride) {
  const int64_t bytes = stride * static_cast<int64_t>(sizeof(float));
  const float* below = sums + kTileRows * stride;
  _tile_loadd(0, sums, bytes);
  if constexpr (N > 1) _tile_loadd(1, sums + kTileRows, bytes);
  _tile_loadd(2, below, bytes);
  if constexpr (N > 1) _tile_loadd(3, below + kTileRows, bytes);
}

template <int N = 2>
TESSERA_INLINE void store_sums(float* sums, int64_t stride) {
  const int64_t bytes = stride * static_cast<int64_t>(sizeof(float));
  float* below = sums + kTileRows * stride;
  _tile_stored(0, sums, bytes);
  if constexpr (N > 1) _tile_stored(1, sums + kTileRows, bytes);
  _tile_stored(2, below, bytes);
  if constexpr (N > 1) _tile_stored(3, below + kTileRows, bytes);
}

template <int N = 2>
TESSERA_INLINE void clear_sums() {
  _tile_zero(0);
  if constexpr (N > 1) _tile_zero(1);
  _tile_zero(2);
  if constexpr (N > 1) _tile_zero(3);
}

/// The two tiles of a factor in memory.
struct TilePair {
  const Bf16 *first, *second;
  int64_t row_bytes = kTileRowBytes;
};

/// GCC takes numbers of tiles as they are written alone.
TESSERA_INLINE void load_upper(TilePair a) { _tile_loadd(4, a.first, a.row_bytes); }
TESSERA_INLINE void load_lower(TilePair a) { _tile_loadd(5, a.second, a.row_bytes); }
TESSERA_INLINE void load_left(TilePair b) { _tile_loadd(6, b.first, b.row_bytes); }
TESSERA_INLINE void load_right(TilePair b) { _tile_loadd(7, b.second, b.row_bytes); }

/// Sums += a b, where columns of b are there and rows of a come.
template <int N = 2>
TESSERA_INLINE void add_rows(TilePair a) {
  load_upper(a);
  _tile_dpbf16ps(0, 4, 6);
  if constexpr (N > 1) _tile_dpbf16ps(1, 4, 7);
  load_lower(a);
  _tile_dpbf16ps(2, 5, 6);
  if constexpr (N > 1) _tile_dpbf16ps(3, 5, 7);
}

/// Sums += a b, where rows of a are there and columns of b come.
template <int N = 2>
TESSERA_INLINE void add_columns(TilePair b) {
  load_left(b);
  _tile_dpbf16ps(0, 4, 6);
  _tile_dpbf16ps(2, 5, 6);
  if constexpr (N > 1) {
    load_right(b);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(3, 5, 7);
  }
}

/// Sums += a b; both come.
template <int N = 2>
TESSERA_INLINE void add_unit(TilePair a, TilePair b) {
  load_left(b);
  load_upper(a);
  _tile_dpbf16ps(0, 4, 6);
  if constexpr (N > 1) {
    load_right(b);
    _tile_dpbf16ps(1, 4, 7);
  }
  load_lower(a);
  _tile_dpbf16ps(2, 5, 6);
  if constexpr (N > 1) _tile_dpbf16ps(3, 5, 7);
}

}  // namespace tessera::kernels::TESSERA_ISA_NAMESPACE
