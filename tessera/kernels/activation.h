// Activations of feed-forward layers, one pass each way.
#pragma once

#include <ATen/core/Tensor.h>

namespace tessera::kernels {

/// silu(gate) * up (Shazeer, GLU Variants Improve Transformer, 2020). [.., F] of one dtype; rows
/// may lie apart, as in slices of a fused projection, whose gradients then lie side by side, too. Saves
/// gate and up only. Throws c10::ValueError if the shapes differ.
at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up);

/// GELU in its tanh form (Hendrycks and Gimpel, 2016), GPT-2's `gelu_new`. Saves x only.
at::Tensor gelu_tanh(const at::Tensor& x);

}  // namespace tessera::kernels
