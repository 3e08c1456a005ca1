// A loss beside the one that a model returns: known inside of it alone, and without a way out.
#pragma once

#include <ATen/core/Tensor.h>

namespace tessera::autograd {

/// `x` itself. Its backward gives `part` the gradient `slope` [as part], whatever stands in that by
/// then: as if slope . part had been added to what the backward begins with (Megatron-LM's
/// MoEAuxLossAutoScaler). Keeps neither x nor part.
at::Tensor attach_loss(const at::Tensor& x, const at::Tensor& part, const at::Tensor& slope);

}  // namespace tessera::autograd
