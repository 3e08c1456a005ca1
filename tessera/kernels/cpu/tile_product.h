// Products of bfloat16 by a processor's matrix unit (Intel's AMX): raw pointers, a part of the result each, no threads of its own.
#pragma once

#include <stdint.h>

namespace tessera::kernels {

/// Factors of a product.
struct TileFactors {
  const void* a;  ///< bfloat16 [rows, depth], contiguous
  const void* b;  ///< bfloat16 [depth, columns] or, `b_by_columns`, [columns, depth], contiguous
  bool b_by_columns;
  int64_t depth;
};

/// out = factor (a b + a' b'), or added to out if `accumulate`. Sums are in float32, rounded once, and each is added up in one order,
/// whatever part of the result is computed.
struct TileProduct {
  TileFactors factors[2];  ///< the second one's depth may be zero
  void* out;               ///< [rows, columns], contiguous; bfloat16 or, `into_float`, float32
  bool into_float;
  int64_t rows, columns;
  float factor;
  bool accumulate;
};

/// Borders of parts are multiples of it but where the result ends.
inline constexpr int64_t kTileBlock = 32;

struct TilePart {
  int64_t first_row, last_row, first_column, last_column;
};

namespace amx_bf16 {

/// Bytes that a part of so many rows and columns needs to work in, at most 1.4 MiB and a multiple of 64; the memory is aligned to it.
int64_t tile_product_workspace(int64_t rows, int64_t columns);
void multiply_part(const TileProduct& product, const TilePart& part, void* workspace);

}  // namespace amx_bf16
}  // namespace tessera::kernels
