// Several linear layers of one input.
#pragma once

#include <initializer_list>
#include <vector>

#include "tessera/kernels/linears.h"
#include "tessera/nn/linear.h"

namespace tessera::nn {

/// The result of each of `layers` of x [.., in]: as one operator (kernels/linears.h) where none has
/// hooks and all multiply by dense weights in their dtype, with a bias each or none, else as if called one by
/// one.
std::vector<torch::Tensor> linears(const torch::Tensor& x, std::initializer_list<Linear> layers,
                                   kernels::ResultLayout layout = kernels::ResultLayout::apart);

}  // namespace tessera::nn
