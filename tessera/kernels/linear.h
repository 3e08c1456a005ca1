// x W^T + b whose backward adds the weight's gradient to where it is kept.
#pragma once

#include <ATen/core/Tensor.h>

namespace tessera::kernels {

/// As at::linear: x [.., I], weight [O, I], bias [O] or undefined.
///
/// If a parameter is a leaf whose .grad() is already there (contiguous; of its dtype, or float32
/// for a 16-bit parameter: a view of a flat gradient buffer), backward adds to it, the weight's
/// gradient by one matrix product with beta = 1, and hands autograd nothing: no temporary [O, I],
/// no pass to add it, no rounding to 16 bits. Otherwise the gradient is returned as usual. Gradient
/// accumulation and a weight used twice (tied) work in both cases. So torch::autograd::grad, which
/// must not touch .grad(), needs parameters without one. Not twice differentiable.
///
/// Under autocast the products take its dtype; a float32 weight is cast once (kernels/autocast.h)
/// and its gradient stays float32.
at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias = {});

/// The same with the weight stored as [I, O]: x W + b.
at::Tensor linear_in_out(const at::Tensor& x, const at::Tensor& weight,
                         const at::Tensor& bias = {});

}  // namespace tessera::kernels
