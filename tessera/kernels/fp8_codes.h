// A matrix as numbers of 8 bits, for products by a device's own units.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "tessera/kernels/fp8.h"

namespace tessera::kernels {

/// Numbers codes * factor, each with the factor of its rectangle. Those that share one with an infinite
/// number are NaN. Sizes R, C are the matrix's, rounded up to a multiple by zeros.
struct Fp8Codes {
  at::Tensor plain;            ///< [R, C] of dtype_of(type), or undefined
  at::Tensor transposed;       ///< [C, R], contiguous, or undefined
  at::Tensor scales, factors;  ///< float32 [R / rows, C / columns]; factor = 1 / scale
  at::Tensor amax;             ///< float32, as scales: the largest magnitudes
};

struct Fp8CodesOptions {
  bool plain = true, transposed = false;  ///< which orders are made
  int64_t multiple = 16;  ///< of both sizes, so that a scaling's rectangles divide them
  std::optional<float> scale = std::nullopt;  ///< in the place of its own, for a scaling of all
  /// int64 [2] beside the matrix, or undefined: the numbers other than zero whose code is zero, and those beyond the range
  /// of a given scale, are added.
  at::Tensor lost = {};
  /// float32 0-d beside the matrix, or undefined: become the largest amax and the least scale seen, if those of the matrix
  /// are beyond them. Zeros have a scale, too, which is not told unless it is given.
  at::Tensor largest = {}, least = {};
};

/// `matrix` [R, C] of any floating dtype, contiguous or the transpose of such, not empty. On a device the host does not wait;
/// where a scale is of a whole contiguous row, and only that order is made, the matrix is read once, else twice. Elsewhere
/// by fp8_codes_reference.
Fp8Codes fp8_codes(const at::Tensor& matrix, const Fp8Scaling& scaling,
                   const Fp8CodesOptions& options);
/// Both orders, each with scales along its own rows: `plain` by `scaling`, whose rectangles are one row high, `transposed`
/// by scaling.transposed(). The options' orders and scale are not used; what is told is plain's.
struct Fp8CodesOfBoth {
  Fp8Codes plain, transposed;
};
Fp8CodesOfBoth fp8_codes_of_both(const at::Tensor& matrix, const Fp8Scaling& scaling,
                                 const Fp8CodesOptions& options);
/// The same by LibTorch's operators. Scales are computed on the host, which waits for them.
Fp8Codes fp8_codes_reference(const at::Tensor& matrix, const Fp8Scaling& scaling,
                             const Fp8CodesOptions& options);

}  // namespace tessera::kernels
