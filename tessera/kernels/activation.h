// Activations of feed-forward layers, one pass each way.
#pragma once

#include <ATen/core/Tensor.h>

#include "tessera/kernels/fused_args.h"

namespace tessera::kernels {

/// silu(gate) * up (Shazeer, GLU Variants Improve Transformer, 2020). [.., F] of one dtype; rows
/// may lie apart, as in slices of a fused projection, whose gradients then lie side by side, too. Saves
/// gate and up only. Throws c10::ValueError if the shapes differ.
at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up);

/// g sigmoid(scale g) (u + 1) (OpenAI, gpt-oss, 2025), where g is gate, at most `limit`, and u is up,
/// within [-limit, limit]; beyond these they have no gradient. In all else as swiglu.
at::Tensor clamped_swiglu(const at::Tensor& gate, const at::Tensor& up, const GateClamp& clamp);

/// GELU in its tanh form (Hendrycks and Gimpel, 2016), GPT-2's `gelu_new`. Saves x only.
at::Tensor gelu_tanh(const at::Tensor& x);

}  // namespace tessera::kernels
