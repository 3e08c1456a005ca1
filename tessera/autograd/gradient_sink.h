// Where a backward may add a parameter's gradient itself instead of handing it to autograd.
#pragma once

#include <ATen/core/Tensor.h>

namespace tessera::autograd {

/// parameter.grad() if `parameter` is a leaf and its gradient is there, contiguous, of its sizes
/// and device, and of its dtype or, for a 16-bit parameter, float32 (a view of a flat gradient
/// buffer): then no temporary gradient, no pass to add it and no rounding to 16 bits in between.
/// Otherwise undefined, as in a backward that does not go to all leaves (autograd::grad, chosen
/// inputs), for a frozen parameter and for one with hooks. Its version says that it was added to.
/// To be called outside of guards that exclude autograd. It may be unwritten: whoever adds asks adds_to().
at::Tensor gradient_sink(const at::Tensor& parameter);

/// Says of a gradient that its memory holds no numbers yet and counts as zero: the first to add to it writes all of it
/// instead, so nobody clears it before and nobody reads what was cleared. Of this tensor alone, not of views.
void set_unwritten(const at::Tensor& gradient);

/// Does it hold numbers? If not, the caller writes all of it next; it counts as written from here on.
bool adds_to(const at::Tensor& gradient);

/// The same of parts of one tensor: the unwritten ones among them become zero, unless all are.
bool adds_to(at::TensorList parts);

/// Makes an unwritten gradient zero.
void fill_unwritten(const at::Tensor& gradient);

/// What a backward returns for a parameter: nothing if there is a `sink`, to which `gradient` is
/// then added; else `gradient` in `dtype`, the parameter's.
at::Tensor hand_over(at::Tensor sink, const at::Tensor& gradient, at::ScalarType dtype);

}  // namespace tessera::autograd
