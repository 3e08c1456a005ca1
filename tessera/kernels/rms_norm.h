// Root-mean-square normalisation in one pass each way (Zhang and Sennrich, Root Mean Square Layer
// Normalization, 2019).
#pragma once

#include <ATen/core/Tensor.h>

#include <tuple>

namespace tessera::kernels {

/// weight * (x / sqrt(mean(x^2) + eps)) over the last dimension, the quotient rounded to x's dtype
/// first, as Hugging Face's Llama does. x [.., D], weight [D] of the same dtype; under autocast to
/// 16 bits the result of float32 is in them, rounded as the next product would. Saves x and one
/// float32 per row. The weight's gradient is summed in float32 over fixed groups of rows, so that
/// it does not depend on the number of threads, and added unrounded to a .grad() that is there
/// (autograd/gradient_sink.h). Not twice differentiable (the plain version, for float64, is). Throws c10::ValueError if weight is not [D].
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps);

/// {x + residual, rms_norm(x + residual)} in the same one pass; the two gradients meet in one pass,
/// too. An undefined residual is nothing: {x, rms_norm(x)}, for what goes on beside its norm.
std::tuple<at::Tensor, at::Tensor> add_rms_norm(const at::Tensor& x, const at::Tensor& residual,
                                                const at::Tensor& weight, double eps);

}  // namespace tessera::kernels
