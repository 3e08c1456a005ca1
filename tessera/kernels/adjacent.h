// Matrices that lie next to each other in memory, taken as the one matrix that they are part of: what
// one product can do for all of them.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

namespace tessera::kernels {

/// Matrices [N, O_i] whose rows make the rows of one [N, sum of O_i] without gaps: that one,
/// contiguous. Undefined if they do not lie so, if one is undefined, and of fewer than two.
at::Tensor side_by_side(at::TensorList parts);

/// Contiguous matrices [O_i, I], each of which begins where the one before ends: all of them,
/// [sum of O_i, I]. Undefined as above.
at::Tensor one_below_other(at::TensorList parts);

}  // namespace tessera::kernels
