// Scores of a router, always in float32.
#pragma once

#include <ATen/core/Tensor.h>

#include "tessera/kernels/flat.h"

namespace tessera::kernels {

/// What multiplies the numbers that enter a router: element i of x, row-major, is drawn uniformly from
/// [1 - eps, 1 + eps) at key.first_position + i (Fedus et al., Switch Transformers, JMLR 2022, section 2.4). The
/// key's rows are not used.
struct Jitter {
  double eps = 0;  ///< 0: nothing is drawn
  DropoutKey key;
};

/// x W^T + b in float32: x [N, D], weight [E, D] and bias [E] (or undefined) of any floating dtypes ->
/// [N, E]. Keeps x as it is, so that rows of 16 bits are float32 only while they are multiplied. The
/// parameters' gradients are made in float32, too, and go where `linear`'s go. Autocast leaves it
/// alone. With a jitter x is multiplied in float32 first; backward draws again and saves nothing for it.
at::Tensor router_logits(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias = {},
                         const Jitter& jitter = {});

}  // namespace tessera::kernels
