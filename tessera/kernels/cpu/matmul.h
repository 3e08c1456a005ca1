// Matrix products that LibTorch's operators do not offer on a CPU, and on a GPU by other names.
#pragma once

#include <ATen/core/Tensor.h>

#include "tessera/kernels/factors.h"

namespace tessera::kernels {

/// Rows and columns of the blocks in which `multiply` widens its operands.
inline constexpr int64_t kWidenedBlock = 1024;

/// out = factor a b, or out += factor a b if `accumulate`. a [M, K], b [K, N] of one dtype, each contiguous or
/// the transpose of a contiguous matrix; out [M, N] of their dtype, each row contiguous, or float32 and contiguous.
///
/// On the host float16, and bfloat16 where the processor has no instructions for it, are multiplied in float32: each
/// result is rounded once, and a block of a, of b and (if out has 16 bits) of out is in memory as
/// float32. With instructions, bfloat16 into float32 is one product without rounding in
/// between where `multiplies_bf16_into_float`, else rounds the product to bfloat16 first. A matrix unit multiplies float32, too, about as
/// exactly as MKL does; infinity makes NaN there (tile_product.h). On CUDA
/// 16 bits into float32 are one product without rounding in between.
void multiply(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, bool accumulate,
              float factor = 1);

/// The product of `factors` plus that of `more`, new, of their dtype. Where `more` is of a small depth, as an adapter's, it costs
/// little by a matrix unit: the sum is rounded once and passed over once. Else as two calls of `multiply`.
at::Tensor sum_of_products(const Factors& factors, const Factors& more);

/// `sum`, to which the product of `more` was added.
at::Tensor added(const at::Tensor& sum, const Factors& more);

/// factor a b, added to `sink` (autograd/gradient_sink.h) if that is defined, else as a new tensor with `options`.
at::Tensor multiply_into(const at::Tensor& sink, const at::Tensor& a, const at::Tensor& b,
                         const at::TensorOptions& options, float factor = 1);

/// Are operands of 16 bits as `a` multiplied in float32? On the host bfloat16 without instructions for it, which takes LibTorch's own way
/// many times as long, and float16 always. Most processors have no instructions for that one either; where there are some, LibTorch's
/// product is rounded to float16 before it is added to a gradient in float32: sums of a scaled loss's gradients pass 65504 there.
bool multiplies_in_float(const at::Tensor& a);

/// Is a product of bfloat16 on the host added up in float32 and kept so? There are instructions for
/// the type, and MKL's gemm_bf16bf16f32 is there.
bool multiplies_bf16_into_float();

}  // namespace tessera::kernels
