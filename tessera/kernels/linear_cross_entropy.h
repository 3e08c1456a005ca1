// The head's product and the cross-entropy loss together, a chunk of rows at a time: never all
// logits.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <utility>

namespace tessera::kernels {

/// A vocabulary divided over ranks: classes [first, first + weight.size(0)) of `total` are here.
/// With the defaults all are. `maximum` and `sum` combine a small contiguous tensor over the ranks,
/// in place; all of them call linear_cross_entropy with the same hidden and targets.
struct VocabularyPart {
  int64_t first = 0, total = 0;
  std::function<void(const at::Tensor&)> maximum, sum;

  bool divided() const { return sum != nullptr; }
};

/// What the losses of tokens come to, where that is not their sum.
struct Objective {
  double value = 0;
  at::Tensor slopes;  ///< [N]: its derivative by each token's loss
};

/// What a head's tokens make one loss by.
struct TokenLoss {
  // NOLINTNEXTLINE(google-explicit-constructor): a number is the usual case
  TokenLoss(double scale = 1) : scale(scale) {}
  explicit TokenLoss(std::function<Objective(const at::Tensor&)> objective)
      : objective(std::move(objective)) {}

  double scale = 1;  ///< the loss is scale * the sum over tokens; 1 / tokens gives the mean
  /// Takes the losses of all tokens, float64 [N] (0 where ignored), and takes the place of `scale`:
  /// the logits are then computed twice, for the losses and for the gradients.
  std::function<Objective(const at::Tensor& losses)> objective;
};

struct LinearCrossEntropyOptions {
  TokenLoss loss = {};
  int64_t ignore_index = -100;  ///< such targets cost nothing and give no gradient
  /// If defined, [V, D]: the weight's gradient is added to it during *forward* and autograd gets
  /// none for the weight.
  at::Tensor weight_gradient;
  double softcap = 0;      ///< logits l are softcap * tanh(l / softcap); 0: as they are
  int64_t chunk_rows = 0;  ///< rows of logits held at a time; 0: as base/loss_chunk.h says
  /// Where it is divided, the gradient of hidden is this rank's summand; two small collectives for
  /// each chunk, in place of gathering V logits for each row (Shoeybi et al., Megatron-LM, 2019,
  /// section 3).
  VocabularyPart vocabulary;
};

/// scale * sum over n of cross_entropy(hidden[n] weight^T, targets[n]), or what the objective makes
/// of them, 0-d float32 (float64 for float64 input). hidden [N, D] and weight [V, D] of one dtype, targets [N] int64.
///
/// The gradients are computed with the loss, while a chunk's logits are at hand (as in Hsu et al.,
/// Liger Kernel, 2024); backward only hands them out, times its incoming gradient if that is not 1.
/// Memory: chunk_rows * V floats, N * D for the gradient of hidden, V * D for the weight's unless
/// `weight_gradient` is given. Without grad mode: the loss only. 16 bits: logits, softmax and the
/// sum of the weight's gradient are in float32. Under autocast the products take its dtype, with
/// the weight cast once (kernels/autocast.h) and its gradient in float32. float32 and 16 bits run
/// kernels of our own (fused.h); other dtypes LibTorch's operators, in the same chunks. The result does not depend on the number of threads.
///
/// Throws c10::IndexError naming the position if a target is neither ignore_index nor in [0, V);
/// c10::ValueError if shapes do not fit, or if backward is asked to scale a gradient that was
/// already added to `weight_gradient`. On a GPU, for which the host does not wait, the loss of such a target is NaN, and
/// such a backward an assertion of the device.
at::Tensor linear_cross_entropy(const at::Tensor& hidden, const at::Tensor& weight,
                                const at::Tensor& targets,
                                const LinearCrossEntropyOptions& options = {});

}  // namespace tessera::kernels
