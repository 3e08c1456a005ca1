// Where a backward may add a parameter's gradient itself instead of handing it to autograd.
#pragma once

#include <ATen/core/Tensor.h>

namespace tessera::autograd {

/// parameter.grad() if `parameter` is a leaf and its gradient is there, contiguous, of its sizes
/// and device, and of its dtype or, for a 16-bit parameter, float32 (a view of a flat gradient
/// buffer): then no temporary gradient, no pass to add it and no rounding to 16 bits in between.
/// Otherwise undefined, as in a backward that does not go to all leaves (autograd::grad, chosen
/// inputs), for a frozen parameter and for one with hooks. Its version says that it was added to.
/// To be called outside of guards that exclude autograd.
at::Tensor gradient_sink(const at::Tensor& parameter);

/// What a backward returns for a parameter: nothing if there is a `sink`, to which `gradient` is
/// then added; else `gradient` in `dtype`, the parameter's.
at::Tensor hand_over(at::Tensor sink, const at::Tensor& gradient, at::ScalarType dtype);

}  // namespace tessera::autograd
