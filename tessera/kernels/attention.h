// Softmax attention in one pass over the keys: no [T, S] matrix is ever stored.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace tessera::kernels {

struct AttentionOptions {
  bool causal =
      true;  ///< query t of T sees keys 0 .. t + S - T (lower-right aligned, as in decoding)
  /// A query sees itself and at most window - 1 keys before it, as transformers counts; only if
  /// causal, >= 1. Unset: all before it.
  std::optional<int64_t> window;
  std::optional<double> scale;  ///< of the scores; 1 / sqrt(E) unless set
  /// Scores s become softcap * tanh(s / softcap) (Gemma 2); > 0. Unset: they stay.
  std::optional<double> softcap;
};

/// softmax(scale * q k^T) v for every head.
/// q [B, T, H, E], k and v [B, S, K, E] of one dtype, H a multiple of K: head h reads key head
/// h / (H / K), nothing is repeated. Any strides (a view into a fused qkv product is read in
/// place); a last dimension that is not contiguous is copied first. Returns [B, T, H, E],
/// contiguous.
///
/// float32 and bfloat16 (sums in float32) on the CPU run a kernel of our own with a hand-written
/// backward that recomputes the scores from the saved output and log-sum-exp [B, H, T] (Dao,
/// FlashAttention-2, 2023, algorithms 1 and 2). Work: 4 B H T S E flops forward, 10 backward, half
/// of it if causal, less with a window (tiles of 64 x 64 outside of it are skipped); memory:
/// O((T + S) E) a thread. On AVX512-BF16 bfloat16 is multiplied as such: the weights and their
/// gradients are rounded to it, as LibTorch does; elsewhere it is widened first. The result does
/// not depend on the number of threads. Not twice differentiable. float16 is computed in float32 by that
/// kernel and rounded; q, k, v and the result are kept in float16. Everything else goes through
/// LibTorch's scaled_dot_product_attention, with a mask [T, S] where there is a window or causal
/// T != S. Under autocast the inputs are taken in its dtype. On the meta device the result is a
/// shape without a graph.
///
/// `sinks` [H], learned: a score that every query of a head has besides those of its keys; it takes
/// part in the softmax and has no value (gpt-oss; Xiao et al., Efficient Streaming Language Models with
/// Attention Sinks, 2024). Undefined: none.
///
/// With a softcap or sinks what has no kernel of ours goes through attention_reference.
///
/// `documents` int64 [N, 2] on the CPU: tokens [begin, end) of the flat [B T] that see each other alone, as
/// if each were a row of its own; ascending, none across rows, T = S. What is in no document
/// is zero and has no gradient. Our kernel's work is then the sum of squares; elsewhere a
/// mask [B, T, S]. Undefined: each row is one.
///
/// Throws c10::ValueError on shapes or dtypes that do not fit, if causal with T > S (queries
/// without a key), on a window that is < 1 or not causal, and on documents that are not as above.
at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                     const AttentionOptions& options = {}, const at::Tensor& documents = {},
                     const at::Tensor& sinks = {});

/// The same in plain LibTorch operators, O(T S) memory: what `attention` is tested against.
at::Tensor attention_reference(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                               const AttentionOptions& options = {},
                               const at::Tensor& documents = {}, const at::Tensor& sinks = {});

}  // namespace tessera::kernels
