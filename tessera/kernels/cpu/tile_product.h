// Products by a processor's matrix unit (Intel's AMX), which multiplies bfloat16: raw pointers, a part of the result each, no threads of its own.
#pragma once

#include <stdint.h>

namespace tessera::kernels {

/// A matrix in memory, whose rows lie `stride` numbers apart or, `by_columns`, its columns.
struct TileMatrix {
  const void* numbers;
  int64_t stride;
  bool by_columns;
};

struct TileFactors {
  TileMatrix a;  ///< [rows, depth]
  TileMatrix b;  ///< [depth, columns]
  int64_t depth;
};

/// out = factor (a b + a' b'), or added to out if `accumulate`. Sums are in float32, rounded once, and each is added up in one order,
/// whatever part of the result is computed.
///
/// A float32 is taken for the sum of three bfloat16, which have its 24 bits, so a product is six of them: those that are left out are at
/// most 2^-25 of it each. The five small ones are added up before the large ones are, within each 96 of the depth, so rounding adds no more
/// than it does in float32. Parts and products below 2^-126 are zero, so numbers and products below about 2^-103 lose bits; what is not finite, or
/// above 3.38e38, makes NaN of all that it is added to.
struct TileProduct {
  TileFactors factors[2];  ///< the second one's depth may be zero
  bool of_float;           ///< float32, else bfloat16
  void* out;  ///< [rows, columns], rows out_stride apart; float32 if `into_float`, else bfloat16
  bool into_float;
  int64_t rows, columns, out_stride;
  float factor;
  bool accumulate;
};

/// Borders of parts are multiples of it but where the result ends.
inline constexpr int64_t kTileBlock = 32;

struct TilePart {
  int64_t first_row, last_row, first_column, last_column;
};

namespace amx_bf16 {

/// Bytes that a part of so many rows and columns needs to work in, at most 1.5 MiB and a multiple of 64; the memory is aligned to it.
int64_t tile_product_workspace(int64_t rows, int64_t columns);
void multiply_part(const TileProduct& product, const TilePart& part, void* workspace);

}  // namespace amx_bf16
}  // namespace tessera::kernels
