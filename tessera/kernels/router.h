// Scores of a router, always in float32.
#pragma once

#include <ATen/core/Tensor.h>

namespace tessera::kernels {

/// x W^T + b in float32: x [N, D], weight [E, D] and bias [E] (or undefined) of any floating dtypes ->
/// [N, E]. Keeps x as it is, so that rows of 16 bits are float32 only while they are multiplied. The
/// parameters' gradients are made in float32, too, and go where `linear`'s go. Autocast leaves it
/// alone.
at::Tensor router_logits(const at::Tensor& x, const at::Tensor& weight,
                         const at::Tensor& bias = {});

}  // namespace tessera::kernels
