// Matrix products that LibTorch's operators do not offer on a CPU.
#pragma once

#include <ATen/core/Tensor.h>

namespace tessera::kernels {

/// out = a b, or out += a b if `accumulate`. a [M, K], b [K, N] of one dtype, each contiguous or
/// the transpose of a contiguous matrix; out [M, N] contiguous, of their dtype or float32. bfloat16
/// into float32 is one product without rounding in between where MKL's gemm_bf16bf16f32 is there,
/// else rounds the product to bfloat16 first.
void multiply(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, bool accumulate);

}  // namespace tessera::kernels
