// Scores of a router, always in float32.
#pragma once

#include <ATen/core/Tensor.h>

namespace tessera::kernels {

/// x W^T in float32: x [N, D] and weight [E, D] of any floating dtypes -> [N, E]. Keeps x as it is,
/// so that rows of 16 bits are float32 only while they are multiplied. The weight's gradient is a
/// product in float32, too, and goes where `linear`'s goes. Autocast leaves it alone.
at::Tensor router_logits(const at::Tensor& x, const at::Tensor& weight);

}  // namespace tessera::kernels
