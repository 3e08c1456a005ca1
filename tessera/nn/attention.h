// Attention as a module: positions come from outside, and what computes it can be replaced.
#pragma once

#include <functional>

#include "tessera/kernels/attention.h"
#include "tessera/nn/hooked.h"

namespace tessera::nn {

/// Where the tokens of a batch stand, as attention needs it.
struct Positions {
  /// Each position's rotation (kernels/rotary.h), float32 [T, R] or [B, T, R]: the first R of E
  /// columns of q and k are rotated. Undefined: none.
  torch::Tensor cos, sin;
  torch::Tensor documents;  ///< kernels/documents.h; undefined: each row is one

  void visit_tensors(const auto& visit) { visit(cos), visit(sin), visit(documents); }
};

/// Computes softmax attention of heads that are rotated already: q [B, T, H, E], k and v
/// [B, S, K, E] -> [B, T, H, E], contiguous. `sinks` [H] or undefined.
using AttentionCore =
    std::function<torch::Tensor(const torch::Tensor& q, const torch::Tensor& k,
                                const torch::Tensor& v, const kernels::AttentionOptions& options,
                                const torch::Tensor& documents, const torch::Tensor& sinks)>;

/// What stands between the projections of a self-attention layer; without parameters. Who divides
/// sequences over ranks puts another core in the place of kernels::attention, which sees the keys
/// that it is given alone.
class AttentionImpl : public Hookable {
 public:
  explicit AttentionImpl(kernels::AttentionOptions options = {});

  /// q [B, T, H, E], k and v [B, S, K, E] -> [B, T, H E]. `sinks` [H] or undefined: kernels/attention.h.
  torch::Tensor forward(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v,
                        const Positions& positions = {}, const torch::Tensor& sinks = {});

  AttentionCore core = kernels::attention;

 private:
  kernels::AttentionOptions options_;
};
using Attention = Hooked<AttentionImpl>;

}  // namespace tessera::nn
