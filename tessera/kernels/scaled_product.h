// Products of numbers of 8 bits by a device's own units: at::_scaled_mm and its arguments.
#pragma once

#include <ATen/core/Tensor.h>

#include "tessera/kernels/fp8_codes.h"

namespace tessera::kernels {

/// An operand as units of 8 bits read it: along the dimension K over which a product adds up.
struct ScaledOperand {
  at::Tensor codes;    ///< [R, K], contiguous, both sizes multiples of fp8_code_multiple
  at::Tensor factors;  ///< float32, of each rectangle of codes (Fp8Codes)
  Fp8Scaling scaling;  ///< of codes
};

/// That operand of `matrix`: in its own order, or of its transpose, which are both in `codes`.
ScaledOperand operand_of(const Fp8Codes& codes, const Fp8Scaling& scaling, bool transposed);

/// left right^T [R, R'] of `dtype`: bfloat16, float16 or float32. `fast`: sums may have fewer bits than float32 between (of
/// Hopper's units, as torchao's forward has them). Scalings that both operands have: one of all, by row (either
/// may be one of all then; the result is rounded to bfloat16 first), 1 x 128 (one of both operands 128 x 128), 1 x 32.
///
/// Argument layouts are those of LibTorch 2.11 (ATen/native/cuda/ScaledBlas.cpp): the right operand column-major;
/// factors of rows [R, 1] and [1, R']; of 1 x 128 with the rows side by side, of 128 x 128 each column from a multiple of
/// 16 bytes; of 1 x 32 E8M0 in tiles of 128 x 4 (cuBLAS, "1D block scaling factors layout").
at::Tensor scaled_product(const ScaledOperand& left, const ScaledOperand& right,
                          at::ScalarType dtype, bool fast);

}  // namespace tessera::kernels
