// Norms of gradients.
#pragma once

namespace tessera::optim {

/// What gradients of a norm are multiplied by so that it is `max_norm` at the most, as
/// torch.nn.utils.clip_grad_norm_ has it; not finite if the norm is not. max_norm 0: 1.
double clip_factor(double norm, double max_norm);

}  // namespace tessera::optim
