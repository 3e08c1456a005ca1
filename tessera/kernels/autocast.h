// LibTorch's autocast as our operators honour it: what products take in its dtype.
#pragma once

#include <ATen/core/Tensor.h>

namespace tessera::kernels {

/// Is autocast on for the tensor's device, and does it cast this one (floating point, not float64)?
bool is_autocast(const at::Tensor& x);

/// `x` in autocast's dtype where is_autocast(x), else `x`. Differentiable.
at::Tensor autocast(const at::Tensor& x);

/// The same for a weight whose gradient an operator computes itself: no graph. A float32 parameter
/// is cast once and kept in autocast's cache of weights (until the outermost guard ends).
at::Tensor autocast_weight(const at::Tensor& weight);

}  // namespace tessera::kernels
