// Norms of gradients.
#pragma once

#include <torch/types.h>

#include <span>

namespace tessera::optim {

/// The sum of squares of contiguous float32, bfloat16 or float16 tensors: sums in double over
/// blocks of 4096 elements, added in a fixed order. Nearer to the float64 sum than an fp32 norm,
/// which loses small terms, and the same for any thread count. Not finite if an element is not.
double squared_norm(std::span<const torch::Tensor> tensors);

/// What gradients of a norm are multiplied by so that it is `max_norm` at the most, as
/// torch.nn.utils.clip_grad_norm_ has it; not finite if the norm is not. max_norm 0: 1.
double clip_factor(double norm, double max_norm);

}  // namespace tessera::optim
