// Products of a few rows with a matrix behind a table of function pointers: raw pointers, columns
// [begin, end) of the result each, no threads of its own.
#pragma once

#include <stdint.h>

namespace tessera::kernels {

/// More rows than this are faster as a product whose matrix is packed first.
inline constexpr int64_t kGemvRows = 4;

/// Numbers of x [rows, depth] in bfloat16, split for a product by columns, are float32 [rows,
/// split_depth(depth)]: of as many as two vectors hold those at even places, then those at odd ones.
inline constexpr int64_t kSplitUnit = 32;
constexpr int64_t split_depth(int64_t depth) {
  return (depth + kSplitUnit - 1) / kSplitUnit * kSplitUnit;
}

/// out = x matrix, or out += x matrix; sums are in float32, rounded once.
struct GemvArgs {
  const void* x;       ///< [rows, depth]; bfloat16 by columns: split
  int64_t x_stride;    ///< numbers from one row of x to the next
  const void* matrix;  ///< [columns, depth] or [depth, columns], contiguous, as the function says
  void* out;           ///< [rows, columns], contiguous
  int64_t rows;        ///< 1 .. kGemvRows
  int64_t depth, columns;
  bool accumulate;
};

struct GemvTable {
  void (*split_pairs)(const void* x, int64_t rows, int64_t depth, float* out);
  using Product = void (*)(const GemvArgs&, int64_t begin, int64_t end);
  /// By dtype of x and matrix, then of out; 0: float, 1: bfloat16. None from float to bfloat16.
  Product by_columns[2][2];  ///< matrix [columns, depth]: a column's numbers lie together
  Product by_depth[2][2];    ///< matrix [depth, columns]
};

namespace generic {
extern const GemvTable gemv_table;
}
#if defined(__x86_64__)
namespace avx2 {
extern const GemvTable gemv_table;
}
namespace avx512 {
extern const GemvTable gemv_table;
}
namespace avx512_bf16 {
extern const GemvTable gemv_table;
}
#endif

}  // namespace tessera::kernels
