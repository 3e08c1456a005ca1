// A product with a weight that is not trained and the low-rank adapter beside it, as one operator.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

#include "tessera/kernels/factors.h"
#include "tessera/kernels/linear.h"

namespace tessera::kernels {

/// A matrix W [O, I] that is not trained, however it is kept, as one forward and its backward see
/// it. What it gives is new, contiguous, of the operand's dtype and without a graph; the product of `more` is added to it.
struct FrozenMatrix {
  using Product = std::function<at::Tensor(const at::Tensor& rows, const Factors& more)>;
  Product forward;                                ///< [N, I] -> rows W^T [N, O]
  Product backward;                               ///< [N, O] -> rows W [N, I]
  std::function<at::Tensor()> squared_row_norms;  ///< float32 [O]
};

/// An adapter: scale B A is added to a matrix.
struct LowRank {
  at::Tensor a, b;  ///< [R, I], [O, R]; of any floating dtype, products take x's
  double scale = 1;
};

/// x W^T + scale (d A^T) B^T + bias, with d = `dropped` [.., I], or x if that is undefined (Hu et
/// al., LoRA, ICLR 2022). The second product is added within the first one, in the backward
/// likewise for x: no temporary of either size, no pass to add it. Beside d, [N, R] are
/// kept for the backward. Gradients of A and B go where `linear`'s go, deferred or with a shared
/// input as there. With `over_ranks` both products are one summand.
at::Tensor low_rank_linear(const at::Tensor& x, const FrozenMatrix& base, const LowRank& adapter,
                           const at::Tensor& bias = {}, const ProductOverRanksPtr& over_ranks = {},
                           const at::Tensor& dropped = {});

/// The norm of each row of W + scale B A, float32 [O], without a graph: |W|^2 + 2 scale (W A^T) . B
/// + scale^2 (B A A^T) . B, row by row, so that no matrix [O, I] is made; W A^T in `dtype`. `sum`, if
/// given, adds over the ranks that divide I.
at::Tensor adapted_row_norms(const FrozenMatrix& base, const LowRank& adapter, at::ScalarType dtype,
                             const std::function<void(const at::Tensor&)>& sum = {});

}  // namespace tessera::kernels
