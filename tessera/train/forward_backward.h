// Forward and backward of micro-batches through the stages that this rank has of a model; without a
// pipeline that is one stage, the whole model.
#pragma once

#include <functional>
#include <vector>

#include "tessera/kernels/linear_cross_entropy.h"
#include "tessera/train/assemble.h"

namespace tessera::train {

/// What the tokens of a micro-batch make a loss by. Asked once for each, on ranks that have the model's head.
using BatchLoss = std::function<kernels::TokenLoss(const data::Batch& batch)>;

/// Adds to the gradients what a step's micro-batches give and reduces them. Returns the sum of their
/// losses on ranks that have the model's head, 0 elsewhere: float64, 0-d, on the run's device, so
/// that the host need not wait for the backward. Collective.
torch::Tensor accumulate_gradients(Run& run, int64_t step, const std::vector<data::Batch>& batches,
                                   const BatchLoss& loss);

/// The same sum without gradients. Collective.
double loss_sum(Run& run, const std::vector<data::Batch>& batches, const BatchLoss& loss);

/// Where logits are asked for.
struct TextPosition {
  int64_t position = 0;        ///< in the rows of ids
  int64_t first_position = 0;  ///< of the rows in their texts (models::RowLayout)
};

/// ids int64 [B, T] -> logits [B, V] of one position in float32 on the CPU, the same on every rank.
/// The head computes no other position, but under sequence parallelism all. Collective.
torch::Tensor logits_at(Run& run, const torch::Tensor& ids, const TextPosition& at);

}  // namespace tessera::train
