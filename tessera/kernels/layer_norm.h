// Layer normalisation (Ba, Kiros and Hinton, Layer Normalization, 2016) in one pass each way.
#pragma once

#include <ATen/core/Tensor.h>

namespace tessera::kernels {

/// The same as at::layer_norm over the last dimension: x [.., D], weight and bias [D] of one dtype;
/// statistics and arithmetic in float32. Under autocast to 16 bits the result of float32 is in
/// them, rounded as the next product would. The gradients of weight and bias are summed in
/// float32 over fixed groups of rows, so that they do not depend on the number of threads, and
/// added unrounded to a .grad() that is there (autograd/gradient_sink.h). Saves x and two floats per
/// row. float64 goes through at::layer_norm. Throws c10::ValueError if weight or
/// bias is not [D].
at::Tensor layer_norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                      double eps);

}  // namespace tessera::kernels
