// The vector code of the fused operators behind a table of function pointers: rows [begin, end)
// each, no threads of its own. `void*` is float, bfloat16 or float16, as the table says.
#pragma once

#include "tessera/kernels/fused_args.h"

namespace tessera::kernels {

struct NormTable {
  void (*rms_norm)(const RmsNormArgs&, int64_t begin, int64_t end);
  /// Adds the rows' gradient of the weight to weight_gradient [dim].
  void (*rms_norm_grad)(const RmsNormGradArgs&, int64_t begin, int64_t end, float* weight_gradient);
  void (*layer_norm)(const LayerNormArgs&, int64_t begin, int64_t end);
  /// Adds the rows' gradients of weight and bias to gradients [2, dim].
  void (*layer_norm_grad)(const LayerNormGradArgs&, int64_t begin, int64_t end, float* gradients);
};

struct FusedTable {
  NormTable norms;
  void (*rotary)(const RotaryArgs&, int64_t begin,
                 int64_t end);  ///< a row is one of batch * tokens
  void (*swiglu)(const SwigluArgs&, int64_t begin, int64_t end);
  void (*swiglu_grad)(const SwigluGradArgs&, int64_t begin, int64_t end);
  void (*gelu_tanh)(const void* x, void* y, int64_t begin, int64_t end);
  void (*gelu_tanh_grad)(const void* grad, const void* x, void* grad_x, int64_t begin, int64_t end);
  void (*cross_entropy)(const CrossEntropyArgs&, int64_t begin, int64_t end);
  /// Adds the rows of x [rows, dim] to sums [dim].
  void (*add_rows)(const void* x, int64_t dim, int64_t begin, int64_t end, float* sums);
};

struct FusedTables {
  FusedTable float32;
  FusedTable bfloat16;
  FusedTable float16;
  /// y and its gradient in 16 bits, all else float.
  NormTable norms_to_bfloat16;
  NormTable norms_to_float16;
};

namespace generic {
extern const FusedTables fused_tables;
}
#if defined(__x86_64__)
namespace avx2 {
extern const FusedTables fused_tables;
}
namespace avx512 {
extern const FusedTables fused_tables;
}
namespace avx512_bf16 {
extern const FusedTables fused_tables;
}
#endif

}  // namespace tessera::kernels
