// What the fused operators are told, on any device: raw pointers and sizes. `void*` is float, bfloat16 or
// float16, as an Element beside it says; arithmetic is in float32 for all.
#pragma once

#include <stdint.h>

namespace tessera::kernels {

/// Tables of kernels are in this order.
enum class Element : uint8_t { float32, bfloat16, float16, float8_e4m3 };

/// y = weight * x / rms(x), row by row; with a residual, x + residual (also stored) takes x's
/// place.
struct RmsNormArgs {
  const void* x;          ///< [rows, dim]
  const void* residual;   ///< [rows, dim], or null
  const void* weight;     ///< [dim]
  void* sum;              ///< [rows, dim], only with a residual
  void* y;                ///< [rows, dim]
  float* reciprocal_rms;  ///< [rows]
  int64_t rows, dim;
  float eps;
  Element type, y_type;  ///< y_type: of y; type: of all else
};

struct RmsNormGradArgs {
  const void* grad;      ///< [rows, dim], of y
  const void* grad_sum;  ///< [rows, dim], of the sum; or null
  const void* x;
  const void* weight;
  const float* reciprocal_rms;
  void* grad_x;
  int64_t rows, dim;
  Element type, grad_type;  ///< grad_type: of grad; type: of all else
};

/// y = weight * (x - mean) / deviation + bias, row by row.
struct LayerNormArgs {
  const void* x;       ///< [rows, dim]
  const void* weight;  ///< [dim]
  const void* bias;    ///< [dim]
  void* y;             ///< [rows, dim]
  float* statistics;   ///< [rows, 2]: mean, reciprocal deviation
  int64_t rows, dim;
  float eps;
  Element type, y_type;
};

struct LayerNormGradArgs {
  const void* grad;  ///< [rows, dim], of y
  const void* x;
  const void* weight;
  const float* statistics;
  void* grad_x;
  int64_t rows, dim;
  Element type, grad_type;
};

/// Half-split rotation of x [batch, tokens, heads, dim], any strides but 1 in the last, into a
/// contiguous y.
struct RotaryArgs {
  const void* x;
  void* y;
  const float* cos;                                 ///< [table_rows, dim]
  const float* sin;                                 ///< [table_rows, dim]
  int64_t batch, tokens, heads, dim;                ///< dim is even
  int64_t batch_stride, token_stride, head_stride;  ///< of x, in elements
  int64_t table_rows;                               ///< of cos and sin: of each token, or of T
  bool inverse;                                     ///< the transposed rotation, for gradients
  Element type;
};

/// What SwiGLU bounds (activation.h).
struct GateClamp {
  float scale = 1.702F, limit = 7;

  bool operator==(const GateClamp&) const = default;
};

/// y = silu(gate) * up, [rows, dim]; with `clamped` as `clamp` says.
struct SwigluArgs {
  const void *gate, *up;
  void* y;
  int64_t rows, dim, gate_stride, up_stride;  ///< strides: elements from row to row
  bool clamped;
  GateClamp clamp;
  Element type;
};

struct SwigluGradArgs {
  const void *grad, *gate, *up;
  void *grad_gate, *grad_up;
  int64_t rows, dim, gate_stride, up_stride;
  int64_t grad_stride;  ///< of grad_gate and grad_up: dim, or 2 dim
  bool clamped;
  GateClamp clamp;
  Element type;
};

/// y = gelu(x) in its tanh form; with a gradient of y, y is the gradient of x.
struct GeluArgs {
  const void* x;
  const void* grad;  ///< or null: forward
  void* y;
  int64_t count;
  Element type;
};

/// to += from, each sum rounded once.
struct AddArgs {
  void* to;
  const float* from;
  int64_t count;
  Element type;  ///< of `to`
};

/// Loss of each row of logits and, if asked for, its gradient.
struct CrossEntropyArgs {
  float* logits;   ///< [rows, vocab]; destroyed
  void* gradient;  ///< row's scale * (softmax - one-hot), [rows, vocab]; may be `logits` itself if
                   ///< float; or null
  const int64_t* targets;  ///< [rows]
  double* losses;          ///< [rows], unscaled; 0 where ignored
  const float* scales;     ///< [rows]; null without gradient
  int64_t rows, vocab, ignore_index;
  Element type;  ///< of the gradient
};

/// Random bits, 32 for each element: a function of key and position alone.
struct RandomBits {
  uint32_t key[2];
  int64_t first;  ///< position of element 0
};

/// What AdamW's update needs; see kernels/flat.h.
struct AdamWArgs {
  void* parameter;
  const void* gradient;
  void *exp_avg, *exp_avg_sq;
  void* copy;                    ///< bfloat16, or null
  const float* found_inf;        ///< on the device, or null: nothing is changed if it is not 0
  const float* gradient_factor;  ///< on the device, or null: the gradient is multiplied by it, too
  float gradient_scale;          ///< the gradient is multiplied by it
  float keep;                    ///< 1 - learning rate * weight decay
  float blend, blend_sq;         ///< 1 - beta1, 1 - beta2
  float beta_sq;                 ///< beta2
  float step_size;               ///< learning rate / (1 - beta1^step)
  float reciprocal_root;         ///< 1 / sqrt(1 - beta2^step)
  float eps;
  bool stochastic;  ///< bfloat16 results are rounded with `bits`, else to nearest
  RandomBits bits;
  int64_t count;
  Element parameter_type, gradient_type, state_type;
};

/// to = from, float32 to bfloat16, float16 or E4M3, up or down at random.
struct RoundArgs {
  const float* from;
  void* to;
  RandomBits bits;
  int64_t count;
  Element type;  ///< of `to`
};

/// How a scale follows from the largest magnitude of the numbers that share it.
enum class Fp8ScaleRule {
  exact,         ///< largest_of(type) / amax, at least 1e-12 (torchao)
  power_of_two,  ///< the power of two below that
  block,         ///< the same in float32, 1 for zeros (Transformer Engine's blocks)
  e8m0           ///< 2^-e with e = amax / largest_of(type) rounded up to a power of two (MXFP8)
};

/// Rectangles of a matrix whose numbers share a scale, and what becomes known of each: [rows / high, columns / wide].
struct Fp8Grid {
  int64_t high,
      wide;  ///< rows and columns, which divide the matrix's: multiples of 8, or one of them 1
  float *amax, *scales,
      *factors;  ///< the largest magnitude; factor: 1 / scale, NaN where amax is not finite
};

/// Codes of numbers times the scale of their rectangle, saturated; see kernels/fp8_codes.h.
struct Fp8CastArgs {
  const void* x;  ///< [rows, columns], both multiples of 16
  int64_t rows, columns;
  Fp8Grid grid;
  Fp8Grid
      grid_of_transposed;  ///< one column wide, where that of the other order is one row high; else null, and `grid`'s
  Fp8ScaleRule rule;
  const float* scale;   ///< on the host: in the place of the rule's; or null
  uint8_t* plain;       ///< [rows, columns], or null
  uint8_t* transposed;  ///< [columns, rows], or null
  /// [2], or null: how many numbers other than zero have a code of zero, and how many are beyond the range of a scale from
  /// the host, are added.
  unsigned long long* lost;
  float *largest,
      *least;  ///< or null: become the largest amax and the least scale seen, if those of `grid` are beyond them
  bool e5m2;
  Element type;
};

/// y = x * scale where an element's random bits are at least `threshold`, else 0.
struct DropArgs {
  const void* x;
  void* y;
  uint32_t threshold;
  float scale;
  RandomBits bits;
  int64_t count;
  int64_t row,
      row_stride;  ///< every `row` elements the position goes on at a multiple of the stride
  Element type;
};

}  // namespace tessera::kernels
