// x W^T + b whose backward adds the weight's gradient to where it is kept.
#pragma once

#include <ATen/core/Tensor.h>

namespace tessera::kernels {

/// As at::linear: x [.., I], weight [O, I], bias [O] or undefined.
///
/// If `weight` is a leaf whose .grad() is already there (contiguous, of the weight's dtype: a view
/// of a flat gradient buffer), backward adds to it by one matrix product with beta = 1 and hands
/// autograd nothing: no temporary [O, I], no pass to add it. Otherwise the gradient is returned as
/// usual. Gradient accumulation and a weight used twice (tied) work in both cases. So
/// torch::autograd::grad, which must not touch .grad(), needs weights without one. Not twice
/// differentiable.
at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias = {});

}  // namespace tessera::kernels
