// What a product of matrices takes.
#pragma once

#include <ATen/core/Tensor.h>

namespace tessera::kernels {

/// a [M, K] and b [K, N] of a product, as `multiply` (cpu/matmul.h) takes them; or undefined, which is none.
struct Factors {
  at::Tensor a, b;
};

}  // namespace tessera::kernels
