// Weights of 4 and 8 bits behind a table of function pointers: quantised, dequantised, multiplied by
// a few rows. Raw pointers, no threads of its own.
#pragma once

#include <stdint.h>

namespace tessera::kernels {

/// More rows than this are faster as a product of a dequantised panel.
inline constexpr int64_t kQuantisedGemvRows = 4;

/// A weight of 4 bits [rows, depth], flattened: block b is its elements [b block, (b + 1) block).
/// Two codes lie in a byte, the first in the high nibble.
struct FourBitArgs {
  const uint8_t* codes;
  const float* absmax;  ///< of block `first_block` and those after it
  const float* values;  ///< [16] what a code stands for
  int64_t first_block;
  int64_t block;
};

/// 1 / 127 as the peer has it.
inline constexpr float kInt8Reciprocal = 7.874015718698502e-3f;

/// A weight of 8 bits [rows, depth]: row r is codes * its absmax * kInt8Reciprocal.
struct EightBitArgs {
  const int8_t* codes;
  const float* absmax;  ///< of row `first` and those after it
  int64_t first;
};

/// The part [begin, begin + count) of each of the rows [first, last), written to `out`, whose rows
/// are `count` long.
struct TileArgs {
  int64_t depth;
  int64_t first, last;
  int64_t begin, count;
  void* out;  ///< float or bfloat16
};

/// out[r, n] = sum over i of x[r, i] weight[n, i], for n in [begin, end).
struct FewRowsArgs {
  const float* even;  ///< [rows, depth / 2] x at even places; 8 bits: x [rows, depth]
  const float* odd;   ///< [rows, depth / 2] x at odd places
  float* out;         ///< [rows, columns]
  int64_t rows;       ///< 1 .. kQuantisedGemvRows
  int64_t depth, columns;
  int64_t begin, end;
};

/// How to make 4-bit codes: the code of x is order[number of bounds below x / absmax].
struct QuantiseArgs {
  const float* bounds;   ///< [15] ascending
  const uint8_t* order;  ///< [16]
  int64_t block;         ///< even
};

struct QuantisedTable {
  /// By type of the result; 0: float, 1: bfloat16.
  void (*dequantise_4bit[2])(const FourBitArgs&, const TileArgs&);
  void (*dequantise_8bit[2])(const EightBitArgs&, const TileArgs&);
  /// depth and block: multiples of 32.
  void (*few_rows_4bit)(const FourBitArgs&, const FewRowsArgs&);
  void (*few_rows_8bit)(const EightBitArgs&, const FewRowsArgs&);
  /// `count` numbers from the start of a block on -> absmax of each block and two codes a byte;
  /// `is_last`: the last block may be shorter.
  void (*quantise_4bit)(const QuantiseArgs&, const float* x, int64_t count, float* absmax,
                        uint8_t* codes);
};

namespace generic {
extern const QuantisedTable quantised_table;
}
#if defined(__x86_64__)
namespace avx2 {
extern const QuantisedTable quantised_table;
}
namespace avx512 {
extern const QuantisedTable quantised_table;
}
namespace avx512_bf16 {
extern const QuantisedTable quantised_table;
}
#endif

}  // namespace tessera::kernels
