// A processor's matrix unit (Intel's AMX), as kernels set it up.
// Include it only from files compiled for it by tessera_isa_sources (cpu/isa.cmake).
#pragma once

#include "tessera/kernels/cpu/vec_math.h"

namespace tessera::kernels::TESSERA_ISA_NAMESPACE {

inline constexpr int64_t kTileRowBytes = 64;  ///< of every tile

/// GCC's tile instructions do not say that they read and write memory.
TESSERA_INLINE void memory_is_used() { asm volatile("" ::: "memory"); }

/// While it lives, this thread's tiles have so many rows; 0: that one is not used.
class AmxTiles {
 public:
  explicit AmxTiles(const uint8_t (&rows)[8]) {
    struct {
      uint8_t palette = 1, start_row = 0, reserved[14] = {};
      uint16_t row_bytes[16] = {};
      uint8_t rows[16] = {};
    } layout;
    for (int i = 0; i < 8; ++i) {
      layout.row_bytes[i] = rows[i] > 0 ? kTileRowBytes : 0;
      layout.rows[i] = rows[i];
    }
    memory_is_used();
    _tile_loadconfig(&layout);
  }
  ~AmxTiles() { _tile_release(); }
  AmxTiles(const AmxTiles&) = delete;
  AmxTiles& operator=(const AmxTiles&) = delete;
};

}  // namespace tessera::kernels::TESSERA_ISA_NAMESPACE
