// Products of rows with the matrix of the group to which each belongs: the experts of a mixture.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include <vector>

namespace tessera::kernels {

/// x W_e^T + s b_e for the rows of each group e: x [R, I], whose first counts[0] rows are group 0's, the
/// next counts[1] group 1's, ..; weights E matrices [O, I] of one shape; counts int64 [E] on x's
/// device, of sum R; biases E of [O], or none, of which each row gets the share s. Gives [R, O]. Rows
/// are never padded.
///
/// As `linear` in all else: gradients of weights are added to where they are kept, wait in a
/// DeferScope, and products take autocast's dtype. Every trained parameter has a gradient, zero where
/// its group has no rows. A CPU multiplies group by group; a GPU in one launch for bfloat16 matrices
/// whose sides are multiples of 8 (at::_grouped_mm; no copy of weights that lie evenly in one
/// buffer), else group by group, after reading the counts. Throws c10::ValueError if shapes do not
/// fit each other.
at::Tensor grouped_linear(const at::Tensor& x, at::TensorList weights, const at::Tensor& counts,
                          at::TensorList biases = {}, double bias_share = 1);

/// The matrices of one kind of all groups, gates or ups: as grouped_linear takes them.
struct GroupedMatrices {
  std::vector<at::Tensor> weights, biases;
};

/// The product of the same rows with each of `members`, matrices of the same groups. Where a group's lie one
/// below the other in memory, as in a flat buffer, the members' results are columns of one tensor and a group's
/// one product; each way, where gradients lie so, too (kernels/linears.h).
std::vector<at::Tensor> grouped_linears(const at::Tensor& x,
                                        const std::vector<GroupedMatrices>& members,
                                        const at::Tensor& counts, double bias_share = 1);

/// The same by LibTorch's operators alone.
at::Tensor grouped_linear_reference(const at::Tensor& x, at::TensorList weights,
                                    const at::Tensor& counts, at::TensorList biases = {},
                                    double bias_share = 1);

}  // namespace tessera::kernels
