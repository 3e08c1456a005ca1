// Rows of tokens on their way to experts and back (Shazeer et al., Outrageously Large Neural
// Networks, ICLR 2017), without padding or dropping.
#pragma once

#include <ATen/core/Tensor.h>

namespace tessera::kernels {

/// Tokens in the order of their experts. A token has a slot for each of its K experts; slots of one
/// expert stand next to each other, in the order of tokens.
struct ExpertOrder {
  at::Tensor slots;   ///< int64 [N K]: the slot n K + j at each place
  at::Tensor places;  ///< int64 [N, K]: the place of each slot
  at::Tensor counts;  ///< int64 [E]: slots of each expert
};

/// `experts` int64 [N, K], each in [0, num_experts).
ExpertOrder order_by_expert(const at::Tensor& experts, int64_t num_experts);

/// The row of each place: x [N, D] -> [N K, D]. Backward sums over a token's slots, in float32.
at::Tensor gather_rows(const at::Tensor& x, const ExpertOrder& order);

/// Each token's sum over its slots of weights [N, K] (float32) times the slot's row:
/// rows [N K, D] -> [N, D], summed in float32. Keeps rows and weights.
at::Tensor combine_rows(const at::Tensor& rows, const at::Tensor& weights,
                        const ExpertOrder& order);

}  // namespace tessera::kernels
