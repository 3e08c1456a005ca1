// The vector code that works on flat buffers of parameters, gradients and optimizer state behind
// tables of function pointers: elements [begin, end) each, no threads of its own.
#pragma once

#include "tessera/kernels/fused_args.h"

namespace tessera::kernels {

struct FlatTable {
  using AdamW = void (*)(const AdamWArgs&, int64_t begin, int64_t end);
  /// AdamW's update by dtype of [parameter][gradient][state]; 0: float, 1: bfloat16.
  AdamW adamw[2][2][2];
  /// Rounds from float; 0: to bfloat16, 1: to float16, 2: to E4M3.
  void (*round_stochastically[3])(const float* from, void* to, const RandomBits& bits,
                                  int64_t begin, int64_t end);
  /// Dropout by dtype of x and y; 0: float, 1: bfloat16, 2: float16.
  void (*drop[3])(const DropArgs&, int64_t begin, int64_t end);
  /// Sums of squares in double, element i in lane i % 8, the same bits for every instruction set.
  double (*squares_of_float)(const void* values, int64_t count);
  double (*squares_of_bfloat16)(const void* values, int64_t count);
  double (*squares_of_half)(const void* values, int64_t count);
};

namespace generic {
extern const FlatTable flat_table;
}
#if defined(__x86_64__)
namespace avx2 {
extern const FlatTable flat_table;
}
namespace avx512 {
extern const FlatTable flat_table;
}
namespace avx512_bf16 {
extern const FlatTable flat_table;
}
#endif

}  // namespace tessera::kernels
