// Every operator in plain LibTorch: what the fused ones are tested against, and what runs where
// they cannot (float64, meta, a GPU in a build without its kernels). Arguments and results as in the header of the operator.
#pragma once

#include <ATen/core/Tensor.h>

#include <tuple>

#include "tessera/kernels/flat.h"
#include "tessera/kernels/fused_args.h"

namespace tessera::kernels {

at::Tensor rms_norm_reference(const at::Tensor& x, const at::Tensor& weight, double eps);
std::tuple<at::Tensor, at::Tensor> add_rms_norm_reference(const at::Tensor& x,
                                                          const at::Tensor& residual,
                                                          const at::Tensor& weight, double eps);
at::Tensor rotary_reference(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin);
at::Tensor swiglu_reference(const at::Tensor& gate, const at::Tensor& up);
at::Tensor clamped_swiglu_reference(const at::Tensor& gate, const at::Tensor& up,
                                    const GateClamp& clamp);
at::Tensor gelu_tanh_reference(const at::Tensor& x);
at::Tensor dropout_reference(const at::Tensor& x, double probability, const DropoutKey& key);

/// All logits at once, as torch.nn.functional.cross_entropy(reduction='sum') in float32 (float64
/// stays).
at::Tensor linear_cross_entropy_reference(const at::Tensor& hidden, const at::Tensor& weight,
                                          const at::Tensor& targets, double scale = 1,
                                          int64_t ignore_index = -100);

}  // namespace tessera::kernels
