// The scheme of BLIS (Van Zee and van de Geijn, ACM TOMS 2015): a block of b is packed, then one of a, and 2 x 2 tiles of sums stay in
// registers along a block's depth. A panel of b stays in the first cache meanwhile, those of a come from the second.
#define TESSERA_ISA_NAMESPACE amx_bf16
#include "tessera/kernels/cpu/tile_packing.h"

namespace tessera::kernels::amx_bf16 {
namespace {

constexpr int64_t kSumNumbers = kTileBlock * kTileBlock;
constexpr int64_t kLines = kSumNumbers / kWidth;

// Sizes of blocks, by measurement: a panel of b has 16 or 18 KiB, the blocks and the sums at most 1.5 MiB.
template <typename Number>
constexpr int64_t kDepth = sizeof(Number) == sizeof(float) ? 96 : 256;
constexpr int64_t kRows = 256, kColumns = 512, kSumRows = 512;

/// A unit's part of a factor, packed.
TESSERA_INLINE TilePair packed(const Bf16* part) { return {part, part + kTileNumbers}; }

/// Where the product of two packed panels goes.
struct Target {
  float* sums;             ///< [32, 32] of the steps of the depth
  bool is_first, is_last;  ///< step: nothing is there yet; the result is complete
  const TileProduct* product;
  int64_t row, column;  ///< of the result
};

/// Line i of 64: half a row of sums [32, 32], to the result if it has it.
template <typename T>
TESSERA_INLINE void write_line(const Target& target, int64_t i, Vec x) {
  const auto& p = *target.product;
  const int64_t row = target.row + i / 2, column = target.column + i % 2 * kWidth;
  const int64_t count = p.columns - column;
  if (row >= p.rows || count <= 0) return;
  T* place = static_cast<T*>(p.out) + row * p.out_stride + column;
  x = x * p.factor;
  if (count >= kWidth) {
    store(place, p.accumulate ? load(place) + x : x);
  } else {
    store_partial(place, p.accumulate ? load_partial(place, count) + x : x, count);
  }
}

/// Products of packed panels.
template <typename Number>
class Panels;

template <>
class Panels<Bf16> {
 public:
  void multiply(const Bf16* a, const Bf16* b, int64_t units, const Target& target) {
    memory_is_used();
    if (target.is_first) {
      clear_sums();
    } else {
      load_sums(target.sums, kTileBlock);
    }
    for (int64_t i = 0; i < units; ++i, a += kUnitNumbers, b += kUnitNumbers) {
      add_unit(packed(a), packed(b));
    }
    store_sums(target.sums, kTileBlock);
    memory_is_used();
    if (!target.is_last) return;
    target.product->into_float ? write<float>(target) : write<Bf16>(target);
  }
  void finish() {}

 private:
  template <typename T>
  static void write(const Target& target) {
    for (int64_t i = 0; i < kLines; ++i) {
      write_line<T>(target, i, load(target.sums + i * kWidth));
    }
  }
};

/// TileProduct says how a product of three parts each is added up. Vector units bring what one call gives to its target while the matrix
/// unit is at the next.
template <>
class Panels<float> {
 public:
  void multiply(const Bf16* a, const Bf16* b, int64_t units, const Target& target) {
    constexpr int64_t kUnitOfAll = 3 * kUnitNumbers;
    constexpr int64_t kHigh = 0, kMiddle = kUnitNumbers, kLow = 2 * kUnitNumbers;
    const int64_t lines = ceil_div(kLines, 2 * units);
    int64_t line = 0;
    memory_is_used();
    clear_sums();
    for (int64_t i = 0; i < units * kUnitOfAll; i += kUnitOfAll, line += 2 * lines) {
      add_unit(packed(a + i + kLow), packed(b + i + kHigh));
      add_rows(packed(a + i + kMiddle));
      bring(line, line + lines);
      add_columns(packed(b + i + kMiddle));
      add_rows(packed(a + i + kHigh));
      bring(line + lines, line + 2 * lines);
      add_columns(packed(b + i + kLow));
    }
    for (int64_t i = 0; i < units * kUnitOfAll; i += kUnitOfAll) {
      add_unit(packed(a + i), packed(b + i));
    }
    is_pending_ = !target.is_first || target.is_last;
    pending_ = target;
    // All lines of the call before are away.
    store_sums(is_pending_ ? own_ : target.sums, kTileBlock);
    memory_is_used();
  }
  void finish() {
    bring(0, kLines);
    is_pending_ = false;
  }

 private:
  /// Lines of the call before.
  TESSERA_INLINE void bring(int64_t first, int64_t last) {
    if (!is_pending_) return;
    for (int64_t i = first; i < least(last, kLines); ++i) {
      Vec x = load(own_ + i * kWidth);
      float* sum = pending_.sums + i * kWidth;
      if (!pending_.is_first) x += load(sum);
      if (pending_.is_last) {
        write_line<float>(pending_, i, x);
      } else {
        store(sum, x);
      }
    }
  }

  alignas(64) float own_[kSumNumbers];
  Target pending_{};
  bool is_pending_ = false;
};

/// Bytes that a part of `rows` and `columns` needs, of whichever numbers are more.
struct Workspace {
  Workspace(int64_t rows, int64_t columns) {
    constexpr int64_t kOfFloats = kParts<float> * kDepth<float>;
    constexpr int64_t kMost = kOfFloats > kDepth<Bf16> ? kOfFloats : kDepth<Bf16>;
    const auto places = [](int64_t count, int64_t most) {
      return ceil_div(least(count, most), kTileBlock) * kTileBlock;
    };
    packed_a = places(rows, kRows) * kMost * static_cast<int64_t>(sizeof(Bf16));
    packed_b = places(columns, kColumns) * kMost * static_cast<int64_t>(sizeof(Bf16));
    sums = places(rows, kSumRows) * places(columns, kColumns) * static_cast<int64_t>(sizeof(float));
  }
  int64_t packed_a, packed_b, sums;
};

/// A part of at most kSumRows x kColumns.
template <typename Number>
struct Block {
  const TileProduct& product;
  const TilePart& part;
  Bf16 *packed_a, *packed_b;
  float* all_sums;  ///< of each block of a, panel of b and panel of a [32, 32]

  /// What a step of the depth adds to the sums; they are written after the last one.
  void add(const TileFactors& f, int64_t step, bool is_first, bool is_last) const {
    constexpr int64_t kPlace = kUnit * kParts<Number>;  // numbers of one in a unit
    const int64_t rows = part.last_row - part.first_row;
    const int64_t columns = part.last_column - part.first_column;
    const int64_t depth = least(kDepth<Number>, f.depth - step), units = ceil_div(depth, kUnit);
    float* sums = all_sums;
    Panels<Number> panels;
    const Packer<Number, true> pack_b({.factor = f.b.numbers,
                                       .stride = f.b.stride,
                                       .along_depth = f.b.by_columns,
                                       .place = part.first_column,
                                       .places = columns,
                                       .step = step,
                                       .depth = depth},
                                      packed_b);
    pack_b.pack();
    for (int64_t first = 0; first < rows; first += kRows) {
      const int64_t count = least(kRows, rows - first);
      const Packer<Number, false> pack_a({.factor = f.a.numbers,
                                          .stride = f.a.stride,
                                          .along_depth = !f.a.by_columns,
                                          .place = part.first_row + first,
                                          .places = count,
                                          .step = step,
                                          .depth = depth},
                                         packed_a);
      pack_a.pack();
      for (int64_t column = 0; column < columns; column += kTileBlock) {
        for (int64_t row = 0; row < count; row += kTileBlock, sums += kSumNumbers) {
          const Bf16* left = packed_a + row * units * kPlace;
          const Bf16* right = packed_b + column * units * kPlace;
          panels.multiply(left, right, units,
                          {.sums = sums,
                           .is_first = is_first,
                           .is_last = is_last,
                           .product = &product,
                           .row = part.first_row + first + row,
                           .column = part.first_column + column});
        }
      }
    }
    panels.finish();
  }

  void multiply() const {
    const auto& [first, second] = product.factors;
    for (int64_t step = 0; step < first.depth; step += kDepth<Number>) {
      add(first, step, step == 0, step + kDepth<Number> >= first.depth && second.depth == 0);
    }
    for (int64_t step = 0; step < second.depth; step += kDepth<Number>) {
      add(second, step, false, step + kDepth<Number> >= second.depth);
    }
  }
};

template <typename Number>
void multiply_blocks(const TileProduct& product, const TilePart& part, char* workspace) {
  const Workspace bytes(part.last_row - part.first_row, part.last_column - part.first_column);
  for (int64_t column = part.first_column; column < part.last_column; column += kColumns) {
    for (int64_t row = part.first_row; row < part.last_row; row += kSumRows) {
      const TilePart block{.first_row = row,
                           .last_row = least(row + kSumRows, part.last_row),
                           .first_column = column,
                           .last_column = least(column + kColumns, part.last_column)};
      Block<Number>{
          .product = product,
          .part = block,
          .packed_a = reinterpret_cast<Bf16*>(workspace),
          .packed_b = reinterpret_cast<Bf16*>(workspace + bytes.packed_a),
          .all_sums = reinterpret_cast<float*>(workspace + bytes.packed_a + bytes.packed_b)}
          .multiply();
    }
  }
}

}  // namespace

int64_t tile_product_workspace(int64_t rows, int64_t columns) {
  const Workspace bytes(rows, columns);
  return bytes.packed_a + bytes.packed_b + bytes.sums;
}

void multiply_part(const TileProduct& product, const TilePart& part, void* workspace) {
  const AmxTiles tiles;
  const auto multiply = product.of_float ? multiply_blocks<float> : multiply_blocks<Bf16>;
  multiply(product, part, static_cast<char*>(workspace));
}

}  // namespace tessera::kernels::amx_bf16
