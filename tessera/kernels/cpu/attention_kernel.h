// What attention.cpp hands to the kernels of cpu/attention_impl.h: raw pointers, no LibTorch.
#pragma once

#include <stdint.h>

namespace tessera::kernels {

/// A [batch, tokens, heads, head_dim] array whose last dimension is contiguous; strides in
/// elements.
struct AttentionView {
  void* data = nullptr;
  int64_t batch_stride = 0;
  int64_t token_stride = 0;
  int64_t head_stride = 0;
};

/// Sizes, inputs and outputs of one call; the gradients are used by backward only.
struct AttentionProblem {
  int64_t num_queries = 0;
  int64_t num_keys = 0;
  int64_t heads = 0;
  int64_t key_heads = 0;
  int64_t head_dim = 0;
  float scale = 1;
  float softcap = 0;  ///< 0: none
  bool causal = true;
  int64_t window = 0;     ///< keys that a query sees at most; num_queries + num_keys: no limit
  bool bfloat16 = false;  ///< element type of every view; else float
  const float* sinks = nullptr;  ///< [heads]: a score that every query has besides; null: none
  AttentionView q, k, v, out;
  float* log_sum_exp = nullptr;  ///< [batch, heads, num_queries], natural logarithm, sinks included
  AttentionView grad_out, grad_q, grad_k, grad_v;
};

/// The kernels of one instruction set. A worker passes a 64-byte aligned buffer of `*_workspace`
/// floats.
struct AttentionTable {
  int64_t (*forward_workspace)(const AttentionProblem&);
  /// Writes out and log_sum_exp for the flat indices batch * heads + head in [begin, end).
  void (*forward)(const AttentionProblem&, int64_t begin, int64_t end, float* workspace);
  int64_t (*backward_workspace)(const AttentionProblem&);
  /// Writes grad_k and grad_v of the key heads with flat indices batch * key_heads + key_head in
  /// [begin, end), and grad_q of every head that reads them.
  void (*backward)(const AttentionProblem&, int64_t begin, int64_t end, float* workspace);
};

namespace generic {
extern const AttentionTable attention_table;
}
#if defined(__x86_64__)
namespace avx2 {
extern const AttentionTable attention_table;
}
namespace avx512 {
extern const AttentionTable attention_table;
}
namespace avx512_bf16 {
extern const AttentionTable attention_table;
}
namespace amx_bf16 {
extern const AttentionTable attention_table;
}
#endif

}  // namespace tessera::kernels
