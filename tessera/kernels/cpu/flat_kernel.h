// The vector code that works on flat buffers of parameters, gradients and optimizer state behind
// tables of function pointers: raw pointers, elements [begin, end) each, no threads of its own.
#pragma once

#include <stdint.h>

namespace tessera::kernels {

/// Random bits, 32 for each element: a function of key and position alone.
struct RandomBits {
  uint32_t key[2];
  int64_t first;  ///< position of element 0
};

/// What AdamW's update of one element needs; see kernels/adamw.h. `void*` is float or bfloat16, as
/// the table says.
struct AdamWArgs {
  void* parameter;
  const void* gradient;
  void *exp_avg, *exp_avg_sq;
  void* copy;             ///< bfloat16, or null
  float gradient_scale;   ///< the gradient is multiplied by it
  float keep;             ///< 1 - learning rate * weight decay
  float blend, blend_sq;  ///< 1 - beta1, 1 - beta2
  float beta_sq;          ///< beta2
  float step_size;        ///< learning rate / (1 - beta1^step)
  float reciprocal_root;  ///< 1 / sqrt(1 - beta2^step)
  float eps;
  bool stochastic;  ///< bfloat16 results are rounded with `bits`, else to nearest
  RandomBits bits;
};

/// y = x * scale where an element's random bits are at least `threshold`, else 0.
struct DropArgs {
  const void* x;
  void* y;
  uint32_t threshold;
  float scale;
  RandomBits bits;
};

struct FlatTable {
  using AdamW = void (*)(const AdamWArgs&, int64_t begin, int64_t end);
  /// AdamW's update by dtype of [parameter][gradient][state]; 0: float, 1: bfloat16.
  AdamW adamw[2][2][2];
  /// Rounds from float to bfloat16.
  void (*round_stochastically)(const float* from, void* to, const RandomBits& bits, int64_t begin,
                               int64_t end);
  /// Dropout by dtype of x and y; 0: float, 1: bfloat16.
  void (*drop[2])(const DropArgs&, int64_t begin, int64_t end);
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
