// Factors of a product as a matrix unit takes them (tile_product.h).
// Include it only from files compiled for it by tessera_isa_sources (cpu/isa.cmake).
#pragma once

#include "tessera/kernels/cpu/amx.h"
#include "tessera/kernels/cpu/tile_product.h"
#include "tessera/kernels/cpu/transpose.h"

namespace tessera::kernels::TESSERA_ISA_NAMESPACE {

inline constexpr int64_t kTileNumbers = kTileRows * kUnit;  // of a factor
inline constexpr int64_t kUnitNumbers =
    kTileBlock * kUnit;  // of two tiles, side by side or one below the other

/// Bfloat16 of a number of a factor.
template <typename Number>
inline constexpr int64_t kParts = sizeof(Number) == sizeof(float) ? 3 : 1;

TESSERA_INLINE constexpr int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
TESSERA_INLINE constexpr int64_t ceil_div(int64_t n, int64_t by) { return (n + by - 1) / by; }

/// The first `count` of 32 numbers, zeros after them.
TESSERA_INLINE void load_run(const Bf16* p, int64_t count, __m512i (&parts)[1]) {
  parts[0] = count >= kUnit ? _mm512_loadu_si512(p)
                            : _mm512_maskz_loadu_epi16(count <= 0 ? 0u : ~0u >> (kUnit - count), p);
}

TESSERA_INLINE __m512 load_floats(const float* p, int64_t count) {
  if (count >= kWidth) return _mm512_loadu_ps(p);
  return _mm512_maskz_loadu_ps(
      static_cast<__mmask16>(count <= 0 ? 0u : 0xffffu >> (kWidth - count)), p);
}

/// Likewise, as three bfloat16 each, the largest first.
TESSERA_INLINE void load_run(const float* p, int64_t count, __m512i (&parts)[3]) {
  __m512 low = load_floats(p, count), high = load_floats(p + kWidth, count - kWidth);
  const auto widened = [](__m256i numbers) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(numbers), 16));
  };
#pragma GCC unroll 3
  for (auto& part : parts) {
    part = (__m512i)_mm512_cvtne2ps_pbh(high, low);
    low = _mm512_sub_ps(low, widened(_mm512_castsi512_si256(part)));
    high = _mm512_sub_ps(high, widened(_mm512_extracti64x4_epi64(part, 1)));
  }
}

/// Two runs of 32 numbers to pairs of one of each.
TESSERA_INLINE void pair(__m512i first, __m512i second, Vec& low, Vec& high) {
  alignas(64) static constexpr uint16_t kOrder[32] = {0,  32, 1,  33, 2,  34, 3,  35, 4,  36, 5,
                                                      37, 6,  38, 7,  39, 8,  40, 9,  41, 10, 42,
                                                      11, 43, 12, 44, 13, 45, 14, 46, 15, 47};
  const auto order = _mm512_load_si512(kOrder);
  const auto upper = _mm512_add_epi16(order, _mm512_set1_epi16(kTileRows));
  low = (Vec)_mm512_permutex2var_epi16(first, order, second);
  high = (Vec)_mm512_permutex2var_epi16(first, upper, second);
}

/// What of a factor is packed; places are rows of a, or columns of b. `along_depth`: the numbers of a place
/// lie together.
struct PackedBlock {
  const void* factor;
  int64_t stride;  ///< of places or, where not along_depth, of the depth
  bool along_depth;
  int64_t place, places, step, depth;
};

/// Fetches the run that comes `kRunsAhead` later; beyond the end nothing happens.
template <typename Number>
TESSERA_INLINE void fetch_ahead(const Number* run, int64_t stride) {
  constexpr int64_t kRunsAhead = 4, kNumbersInLine = 64 / sizeof(Number);
  const Number* later = run + kRunsAhead * stride;
  for (int64_t i = 0; i < kUnit; i += kNumbersInLine) {
    _mm_prefetch(reinterpret_cast<const char*>(later + i), _MM_HINT_T0);
  }
}

TESSERA_INLINE void transpose_tile(Bf16* tile) {
  Vec rows[kTileRows];
  __builtin_memcpy(rows, tile, sizeof rows);
  transpose(rows);
  __builtin_memcpy(tile, rows, sizeof rows);
}

/// Packs in panels of kTileBlock places, each along the depth, with zeros behind the last place: of each unit the parts, of each part two
/// tiles, one for 16 places each, of a [places, pairs of the depth], of b [pairs, places]. Reads runs of memory one after the other.
template <typename Number, bool kOfB>
class Packer {
 public:
  Packer(const PackedBlock& block, Bf16* to) : block_(block), to_(to) {}

  void pack() const {
    const int64_t stride = block_.stride;
    const auto* numbers = static_cast<const Number*>(block_.factor);
    if (block_.along_depth) {
      pack_places(numbers + block_.place * stride + block_.step, stride);
    } else {
      pack_depth(numbers + block_.step * stride + block_.place, stride);
    }
  }

 private:
  static constexpr int64_t kAll = kParts<Number>;

  Bf16* tiles(int64_t panel, int64_t unit) const {
    return to_ + (panel * units_ + unit) * kUnitNumbers * kAll;
  }

  void pack_places(const Number* numbers, int64_t stride) const {
    for (int64_t place = 0; place < panels_ * kTileBlock; ++place, numbers += stride) {
      for (int64_t unit = 0; unit < units_; ++unit) {
        const Number* run = numbers + unit * kUnit;
        fetch_ahead(run, stride);
        __m512i parts[kAll];
        load_run(run, place < block_.places ? block_.depth - unit * kUnit : 0, parts);
        Bf16* row = tiles(place / kTileBlock, unit) + place % kTileBlock * kUnit;
#pragma GCC unroll 3
        for (int64_t part = 0; part < kAll; ++part) {
          _mm512_store_si512(row + part * kUnitNumbers, parts[part]);
        }
      }
      const bool ends_panel = place % kTileBlock == kTileBlock - 1;
      if (!kOfB || !ends_panel) continue;
      for (int64_t unit = 0; unit < units_; ++unit) transpose_tiles(place / kTileBlock, unit);
    }
  }

  void pack_depth(const Number* numbers, int64_t stride) const {
    for (int64_t step = 0; step < units_ * kUnit; step += 2, numbers += 2 * stride) {
      const int64_t unit = step / kUnit;
      for (int64_t panel = 0; panel < panels_; ++panel) {
        const Number* run = numbers + panel * kTileBlock;
        const int64_t places = block_.places - panel * kTileBlock;
        __m512i first[kAll], second[kAll];
        fetch_ahead(run, stride);
        fetch_ahead(run + stride, stride);
        load_run(run, step < block_.depth ? places : 0, first);
        load_run(run + stride, step + 1 < block_.depth ? places : 0, second);
        Bf16* row = tiles(panel, unit) + step % kUnit / 2 * kUnit;
#pragma GCC unroll 3
        for (int64_t part = 0; part < kAll; ++part, row += kUnitNumbers) {
          Vec low, high;
          pair(first[part], second[part], low, high);
          _mm512_store_ps(row, low);
          _mm512_store_ps(row + kTileNumbers, high);
        }
      }
      const bool ends_unit = step % kUnit == kUnit - 2;
      if (kOfB || !ends_unit) continue;
      for (int64_t panel = 0; panel < panels_; ++panel) transpose_tiles(panel, unit);
    }
  }

  void transpose_tiles(int64_t panel, int64_t unit) const {
    Bf16* tile = tiles(panel, unit);
    for (int64_t i = 0; i < 2 * kAll; ++i) transpose_tile(tile + i * kTileNumbers);
  }

  const PackedBlock block_;
  Bf16* to_;
  const int64_t units_ = ceil_div(block_.depth, kUnit);
  const int64_t panels_ = ceil_div(block_.places, kTileBlock);
};

}  // namespace tessera::kernels::TESSERA_ISA_NAMESPACE
