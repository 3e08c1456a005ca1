// The vector code of the fused operators behind a table of function pointers: raw pointers, rows
// [begin, end) each, no threads of its own. `void*` is float or bfloat16, as the table says;
// arithmetic is in float32 for both.
#pragma once

#include <cstdint>

namespace tessera::kernels {

/// y = weight * x / rms(x), row by row; with a residual, x + residual (also stored) takes x's
/// place.
struct RmsNormArgs {
  const void* x;          ///< [rows, dim]
  const void* residual;   ///< [rows, dim], or null
  const void* weight;     ///< [dim]
  void* sum;              ///< [rows, dim], only with a residual
  void* y;                ///< [rows, dim]
  float* reciprocal_rms;  ///< [rows]
  int64_t dim;
  float eps;
};

struct RmsNormGradArgs {
  const void* grad;      ///< [rows, dim], of y
  const void* grad_sum;  ///< [rows, dim], of the sum; or null
  const void* x;
  const void* weight;
  const float* reciprocal_rms;
  void* grad_x;
  int64_t dim;
};

/// y = weight * (x - mean) / deviation + bias, row by row.
struct LayerNormArgs {
  const void* x;       ///< [rows, dim]
  const void* weight;  ///< [dim]
  const void* bias;    ///< [dim]
  void* y;             ///< [rows, dim]
  float* statistics;   ///< [rows, 2]: mean, reciprocal deviation
  int64_t dim;
  float eps;
};

struct LayerNormGradArgs {
  const void* grad;  ///< [rows, dim], of y
  const void* x;
  const void* weight;
  const float* statistics;
  void* grad_x;
  int64_t dim;
};

/// Half-split rotation of x [batch, tokens, heads, dim], any strides but 1 in the last, into a
/// contiguous y.
struct RotaryArgs {
  const void* x;
  void* y;
  const float* cos;  ///< [tokens, dim]
  const float* sin;  ///< [tokens, dim]
  int64_t tokens, heads, dim;
  int64_t batch_stride, token_stride, head_stride;  ///< of x, in elements
  int64_t table_rows;                               ///< of cos and sin: of each token, or of T
  bool inverse;                                     ///< the transposed rotation, for gradients
};

/// y = silu(gate) * up, [rows, dim].
struct SwigluArgs {
  const void *gate, *up;
  void* y;
  int64_t dim, gate_stride, up_stride;  ///< elements from row to row
};

struct SwigluGradArgs {
  const void *grad, *gate, *up;
  void *grad_gate, *grad_up;
  int64_t dim, gate_stride, up_stride;
};

/// Loss of each row of logits and, if asked for, its gradient.
struct CrossEntropyArgs {
  float* logits;   ///< [rows, vocab]; destroyed
  void* gradient;  ///< row's scale * (softmax - one-hot), [rows, vocab]; may be `logits` itself if
                   ///< float; or null
  const int64_t* targets;  ///< [rows]
  double* losses;          ///< [rows], unscaled; 0 where ignored
  const float* scales;     ///< [rows]; null without gradient
  int64_t vocab, ignore_index;
};

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
  /// y and its gradient bfloat16, all else float.
  NormTable norms_to_bfloat16;
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
