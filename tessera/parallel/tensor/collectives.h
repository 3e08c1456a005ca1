// Where activations go from one division to another: collectives that autograd knows.
#pragma once

#include <torch/types.h>

#include <functional>

#include "tessera/kernels/linear.h"
#include "tessera/mesh/mesh.h"

namespace tessera::parallel {

/// Between divided modules, activations [B, T, D] are the same on every rank of `axis`; with
/// `sequence` each rank has positions [r T/N, (r+1) T/N) of every row (sequence parallelism;
/// Korthikanti et al., 2022, section 4.2). Sent per rank for B T D elements, each way, in units of
/// (N-1)/N of their bytes:
///                     forward              backward
///   enter             -                    all-reduce (2)
///   leave             all-reduce (2)       -
///   enter, sequence   all-gather (1)       reduce-scatter (1), all-gather (1)
///   leave, sequence   reduce-scatter (1)   all-gather (1)
/// T is the last dimension but one everywhere. An axis of one rank: nothing.
struct Activations {
  mesh::Axis axis;
  bool sequence = false;
};

/// Takes x into a divided module: all positions of it. Under autocast x is cast first, so that its
/// dtype is what is sent. `shared`: offered to the products that read it (autograd/shared_input.h).
/// They keep this rank's positions alone, unless their backward is next: it gathers the others
/// again while it computes the gradient of the input (section 4.2.2). Gradients of weights are
/// computed while that gradient is summed over ranks.
torch::Tensor enter(const torch::Tensor& x, const Activations& activations, bool shared);

/// Takes a result out of a divided module: the sum over ranks of their summands, or this rank's
/// positions of it.
torch::Tensor leave(const torch::Tensor& summand, const Activations& activations);

/// The sum over ranks of a tensor that each makes of its part; every rank goes on with the sum in a
/// way of its own, so the gradients are summed as well.
torch::Tensor sum_over(const torch::Tensor& part, const mesh::Axis& axis);

/// Adds numbers over ranks, in place and without a graph; empty: there is one rank.
std::function<void(const torch::Tensor& numbers)> adding_over(const mesh::Axis& axis);

/// The same within a product (kernels/linear.h).
kernels::ProductOverRanksPtr leave_product(const Activations& activations);

/// Divides x, which every rank has whole: gives x, or this rank's positions of it. Without
/// communication forward; backward gathers the gradient.
torch::Tensor own_positions(const torch::Tensor& x, const Activations& activations);

/// Parts [.., n_r] of the last dimension, of any sizes, side by side [.., sum n_r]. `sizes`: n_r of
/// every rank. Backward takes this rank's part of the gradient, which must be the same on all.
torch::Tensor side_by_side(const torch::Tensor& part, const std::vector<int64_t>& sizes,
                           const mesh::Axis& axis);

}  // namespace tessera::parallel
