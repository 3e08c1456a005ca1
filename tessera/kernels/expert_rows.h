// Rows of tokens on their way to experts and back (Shazeer et al., Outrageously Large Neural
// Networks, ICLR 2017), without padding.
#pragma once

#include <ATen/core/Tensor.h>

namespace tessera::kernels {

/// Tokens in the order of their experts. A token has a slot for each of its K experts; slots of one
/// expert stand next to each other, in the order of tokens. R of the N K slots have a place: all, but for those
/// that were dropped.
struct ExpertOrder {
  at::Tensor slots;   ///< int64 [R]: the slot n K + j at each place
  at::Tensor places;  ///< int64 [N, K]: the place of each slot; R of one without
  at::Tensor counts;  ///< int64 [E]: slots of each expert
};

/// `experts` int64 [N, K], each in [0, num_experts), or where `some_dropped` negative: dropped. Then another device
/// than the CPU is waited for, to know R.
ExpertOrder order_by_expert(const at::Tensor& experts, int64_t num_experts,
                            bool some_dropped = false);

/// The row of each place: x [N, D] -> [R, D]. Backward sums over a token's slots, in float32.
at::Tensor gather_rows(const at::Tensor& x, const ExpertOrder& order);

/// Each token's sum over its slots of weights [N, K] (float32) times the slot's row:
/// rows [R, D] -> [N, D], summed in float32. Keeps rows and weights. A slot without a place adds nothing, and the
/// gradient of its weight is 0.
at::Tensor combine_rows(const at::Tensor& rows, const at::Tensor& weights,
                        const ExpertOrder& order);

}  // namespace tessera::kernels
