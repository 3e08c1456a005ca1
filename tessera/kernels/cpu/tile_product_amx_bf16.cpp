// The scheme of BLIS (Van Zee and van de Geijn, ACM TOMS 2015): a block of b is packed, then one of a, and 2 x 2 tiles of sums stay in
// registers along a block's depth. A panel of b stays in the first cache meanwhile, those of a come from the second.
#define TESSERA_ISA_NAMESPACE amx_bf16
#include "tessera/kernels/cpu/amx.h"
#include "tessera/kernels/cpu/tile_product.h"
#include "tessera/kernels/cpu/transpose.h"

namespace tessera::kernels::amx_bf16 {
namespace {

constexpr int64_t kTileRows = 16;                    // of sums, and columns of them
constexpr int64_t kUnit = 32;                        // of the depth that one instruction multiplies
constexpr int64_t kTileNumbers = kTileRows * kUnit;  // of a factor
constexpr int64_t kUnitNumbers =
    kTileBlock * kUnit;  // of two tiles, side by side or one below the other
// Sizes of blocks, by measurement: a panel of b has 16 KiB, the blocks and the sums 1.4 MiB.
constexpr int64_t kDepth = 256, kRows = 256, kColumns = 512, kSumRows = 512;

constexpr int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
constexpr int64_t ceil_div(int64_t n, int64_t by) { return (n + by - 1) / by; }

/// Rows of tiles: 0 to 3 are sums [16, 16], 4 and 5 left, 6 and 7 right factors.
constexpr uint8_t kRowsOfTiles[8] = {kTileRows, kTileRows, kTileRows, kTileRows,
                                     kTileRows, kTileRows, kTileRows, kTileRows};

/// The first `count` of 32 numbers, zeros after them; what follows later is fetched.
TESSERA_INLINE __m512i load_numbers(const Bf16* p, int64_t count) {
  constexpr int64_t kAhead = 128;
  _mm_prefetch(reinterpret_cast<const char*>(p + kAhead), _MM_HINT_T0);
  if (count >= kUnit) return _mm512_loadu_si512(p);
  return _mm512_maskz_loadu_epi16(count <= 0 ? 0u : ~0u >> (kUnit - count), p);
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

/// Numbers [places, depth] of a factor, of which runs lie `stride` apart.
struct Source {
  const Bf16* numbers;
  int64_t stride, places, depth;
};

/// Two tiles [pairs of the depth, 16 columns]; `kByColumns`: the numbers of a column lie together.
template <bool kByColumns>
void pack_right(const Source& source, Bf16* to) {
  Vec tiles[2][kTileRows];
#pragma GCC unroll 16
  for (int64_t i = 0; i < kTileRows; ++i) {
    const auto run = [&](int64_t index, int64_t all, int64_t numbers) {
      return load_numbers(source.numbers + index * source.stride, index < all ? numbers : 0);
    };
    if constexpr (kByColumns) {
      tiles[0][i] = (Vec)run(i, source.places, source.depth);
      tiles[1][i] = (Vec)run(kTileRows + i, source.places, source.depth);
    } else {
      pair(run(2 * i, source.depth, source.places), run(2 * i + 1, source.depth, source.places),
           tiles[0][i], tiles[1][i]);
    }
  }
  for (auto& tile : tiles) {
    if constexpr (kByColumns) transpose(tile);
#pragma GCC unroll 16
    for (int64_t i = 0; i < kTileRows; ++i, to += kUnit)
      __builtin_memcpy(to, &tile[i], sizeof(Vec));
  }
}

/// A block of b, in panels of kTileBlock columns, each along the depth. In the order in which memory lies.
void pack_b(const TileFactors& f, int64_t all_columns, int64_t column, int64_t columns,
            int64_t step, int64_t depth, Bf16* to) {
  const bool by_columns = f.b_by_columns;
  const int64_t units = ceil_div(depth, kUnit), panels = ceil_div(columns, kTileBlock);
  const int64_t along_row = by_columns ? f.depth : 1, along_column = by_columns ? 1 : all_columns;
  const Bf16* block = static_cast<const Bf16*>(f.b) + column * along_row + step * along_column;
  const auto pack = by_columns ? pack_right<true> : pack_right<false>;
  for (int64_t i = 0; i < units * panels; ++i) {
    const int64_t panel = by_columns ? i / units : i % panels;
    const int64_t unit = by_columns ? i % units : i / panels;
    pack({.numbers = block + panel * kTileBlock * along_row + unit * kUnit * along_column,
          .stride = by_columns ? f.depth : all_columns,
          .places = columns - panel * kTileBlock,
          .depth = depth - unit * kUnit},
         to + (panel * units + unit) * kUnitNumbers);
  }
}

/// A block of a, in panels of kTileBlock rows, each along the depth; zeros below the last row.
void pack_a(const TileFactors& f, int64_t row, int64_t rows, int64_t step, int64_t depth,
            Bf16* to) {
  const Bf16* block = static_cast<const Bf16*>(f.a) + row * f.depth + step;
  const int64_t units = ceil_div(depth, kUnit);
  for (int64_t i = 0; i < ceil_div(rows, kTileBlock) * kTileBlock; ++i) {
    Bf16* place = to + i / kTileBlock * units * kUnitNumbers + i % kTileBlock * kUnit;
    for (int64_t step = 0; step < depth; step += kUnit, place += kUnitNumbers) {
      const auto run = i < rows ? load_numbers(block + i * f.depth + step, depth - step)
                                : _mm512_setzero_si512();
      _mm512_storeu_si512(place, run);
    }
  }
}

/// sums [32, 32] = a b or sums += a b, of packed panels.
template <bool kAccumulate>
void multiply_panels(const Bf16* a, const Bf16* b, int64_t units, float* sums) {
  constexpr int64_t kSumBytes = kTileBlock * sizeof(float);
  float* below = sums + kTileRows * kTileBlock;
  memory_is_used();
  if constexpr (kAccumulate) {
    _tile_loadd(0, sums, kSumBytes);
    _tile_loadd(1, sums + kTileRows, kSumBytes);
    _tile_loadd(2, below, kSumBytes);
    _tile_loadd(3, below + kTileRows, kSumBytes);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  for (int64_t i = 0; i < units; ++i, a += kUnitNumbers, b += kUnitNumbers) {
    _tile_loadd(6, b, kTileRowBytes);
    _tile_loadd(4, a, kTileRowBytes);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, b + kTileNumbers, kTileRowBytes);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(5, a + kTileNumbers, kTileRowBytes);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, sums, kSumBytes);
  _tile_stored(1, sums + kTileRows, kSumBytes);
  _tile_stored(2, below, kSumBytes);
  _tile_stored(3, below + kTileRows, kSumBytes);
  memory_is_used();
}

/// Sums [32, 32] to `rows` and `columns` of the result.
template <typename T>
void write_sums(const TileProduct& p, const float* sums, int64_t row, int64_t column) {
  const int64_t rows = least(kTileBlock, p.rows - row),
                columns = least(kTileBlock, p.columns - column);
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; j += kWidth) {
      const int64_t count = columns - j;
      T* place = static_cast<T*>(p.out) + (row + i) * p.columns + column + j;
      Vec x = load(sums + i * kTileBlock + j) * p.factor;
      if (count >= kWidth) {
        store(place, p.accumulate ? load(place) + x : x);
      } else {
        store_partial(place, p.accumulate ? load_partial(place, count) + x : x, count);
      }
    }
  }
}

constexpr int64_t kBytesOfA = kDepth * kRows * sizeof(Bf16);
constexpr int64_t kBytesOfB = kDepth * kColumns * sizeof(Bf16);

/// A part of at most kSumRows x kColumns.
struct Block {
  const TileProduct& product;
  const TilePart& part;
  Bf16 *packed_a, *packed_b;
  float* all_sums;  ///< of each block of a, panel of b and panel of a [32, 32]

  /// What a step of the depth adds to the sums; they are written after the last one.
  void add(const TileFactors& factors, int64_t step, bool is_first, bool is_last) const {
    const int64_t rows = part.last_row - part.first_row;
    const int64_t columns = part.last_column - part.first_column;
    const int64_t depth = least(kDepth, factors.depth - step), units = ceil_div(depth, kUnit);
    const auto multiply = is_first ? multiply_panels<false> : multiply_panels<true>;
    const auto write = product.into_float ? write_sums<float> : write_sums<Bf16>;
    float* sums = all_sums;
    pack_b(factors, product.columns, part.first_column, columns, step, depth, packed_b);
    for (int64_t first = 0; first < rows; first += kRows) {
      const int64_t count = least(kRows, rows - first);
      pack_a(factors, part.first_row + first, count, step, depth, packed_a);
      for (int64_t column = 0; column < columns; column += kTileBlock) {
        for (int64_t row = 0; row < count; row += kTileBlock, sums += kTileBlock * kTileBlock) {
          multiply(packed_a + row * units * kUnit, packed_b + column * units * kUnit, units, sums);
          if (is_last) {
            write(product, sums, part.first_row + first + row, part.first_column + column);
          }
        }
      }
    }
  }

  void multiply() const {
    const auto& [first, second] = product.factors;
    for (int64_t step = 0; step < first.depth; step += kDepth) {
      add(first, step, step == 0, step + kDepth >= first.depth && second.depth == 0);
    }
    for (int64_t step = 0; step < second.depth; step += kDepth) {
      add(second, step, false, step + kDepth >= second.depth);
    }
  }
};

}  // namespace

int64_t tile_product_workspace(int64_t rows, int64_t columns) {
  const auto blocks = [](int64_t n, int64_t most) {
    return ceil_div(least(n, most), kTileBlock) * kTileBlock;
  };
  const int64_t sums = blocks(rows, kSumRows) * blocks(columns, kColumns);
  return kBytesOfA + kBytesOfB + sums * static_cast<int64_t>(sizeof(float));
}

void multiply_part(const TileProduct& product, const TilePart& part, void* workspace) {
  const AmxTiles tiles(kRowsOfTiles);
  auto* const bytes = static_cast<char*>(workspace);
  for (int64_t column = part.first_column; column < part.last_column; column += kColumns) {
    for (int64_t row = part.first_row; row < part.last_row; row += kSumRows) {
      const TilePart block{.first_row = row,
                           .last_row = least(row + kSumRows, part.last_row),
                           .first_column = column,
                           .last_column = least(column + kColumns, part.last_column)};
      Block{.product = product,
            .part = block,
            .packed_a = reinterpret_cast<Bf16*>(bytes),
            .packed_b = reinterpret_cast<Bf16*>(bytes + kBytesOfA),
            .all_sums = reinterpret_cast<float*>(bytes + kBytesOfA + kBytesOfB)}
          .multiply();
    }
  }
}

}  // namespace tessera::kernels::amx_bf16
