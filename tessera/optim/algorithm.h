// What an optimizer does to one slice: one source for each algorithm (adamw.cpp, sgd.cpp, ..).
#pragma once

#include <vector>

#include "tessera/optim/optimizer.h"

namespace tessera::optim {

struct Update {
  const Slice& slice;
  const std::vector<torch::Tensor>& states;  ///< as `states` of the algorithm has them
  const OptimizerOptions& options;
  double learning_rate = 0, gradient_scale = 1;
  int64_t step = 1;  ///< number of this update, from 1
};

struct Algorithm {
  std::vector<StateKind> (*states)(const OptimizerOptions& options);
  void (*update)(const Update& update);
};

extern const Algorithm kAdamW, kAdamW8bit, kAdamWFp8, kSgd, kLion;

/// The gradient as it counts, float32: the slice's own, scaled in place, or a copy.
torch::Tensor scaled_gradient(const Update& update);

/// Writes `parameter`, the slice's own or its new value in float32, back: rounded as the options
/// say, and to the slice's copy.
void store(const Update& update, const torch::Tensor& parameter);

}  // namespace tessera::optim
