// x W^T + b of a frozen weight of 4 or 8 bits.
#pragma once

#include "tessera/kernels/linear.h"
#include "tessera/kernels/quantised.h"

namespace tessera::kernels {

/// Bytes of a panel of a weight that is dequantised at once in float32; of bfloat16 a quarter.
inline constexpr int64_t kPanelBytes = 4 << 20;

/// The same as `linear` (kernels/linear.h) of the dequantised weight, which has no gradient: x [.., in] of
/// float32, bfloat16 or float16, in which the product is taken; under autocast in its dtype.
///
/// On a CPU no matrix is dequantised whole: up to four rows are multiplied by the codes where they
/// lie, which reads 4 bits a weight; more rows by a panel at a time that stays in the cache, forward
/// and for the gradient of x. Scratch: kPanelBytes a thread, and nested absmax in float32.
at::Tensor quantised_linear(const at::Tensor& x, const Quantised& weight,
                            const at::Tensor& bias = {},
                            const ProductOverRanksPtr& over_ranks = {});

/// The product alone, without a graph: rows [N, in] W^T -> [N, out], or (`transposed`) [N, out] W ->
/// [N, in], in the dtype of `rows`.
at::Tensor quantised_product(const at::Tensor& rows, const Quantised& weight, bool transposed);

}  // namespace tessera::kernels
