// Optimizers on flat slices: one fused kernel per slice.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <vector>

namespace tessera::optim {

enum class OptimizerType { adamw, sgd };

struct OptimizerOptions {
  OptimizerType type = OptimizerType::adamw;
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8;  ///< adamw (Loshchilov and Hutter, ICLR 2019)
  double momentum = 0;                           ///< sgd; 0: no momentum buffer
};

/// Part of a flat buffer that one optimizer group owns: 1-D, contiguous, parameter and gradient of equal length.
struct Slice {
  torch::Tensor parameter, gradient;
  double weight_decay = 0;  ///< decoupled in adamw, added to the gradient in sgd
};

/// Keeps the state of every slice (adamw: two tensors of its size; sgd: one with momentum, else none) from the first step.
class Optimizer {
 public:
  Optimizer(std::vector<Slice> slices, OptimizerOptions options);

  /// One update; gradients are multiplied by `gradient_scale` first (clipping), in the same pass for adamw, so that the
  /// gradients are changed by a step. Cost: one pass over parameters, gradients and state.
  void step(double learning_rate, double gradient_scale = 1);

  const std::vector<Slice>& slices() const { return slices_; }

 private:
  struct State {
    torch::Tensor exp_avg, exp_avg_sq, step;  // adamw; sgd keeps its momentum in exp_avg
  };
  void step_adamw(double learning_rate, double gradient_scale);
  void step_sgd(double learning_rate, double gradient_scale);

  std::vector<Slice> slices_;
  OptimizerOptions options_;
  std::vector<State> states_;
};

}  // namespace tessera::optim
