// Stochastic gradient descent with momentum, as torch.optim.SGD.
#include "tessera/optim/algorithm.h"

namespace tessera::optim {
namespace {

std::vector<StateKind> sgd_states(const OptimizerOptions& options) {
  if (options.momentum == 0) return {};
  return {{"momentum_buffer"}};
}

void sgd(const Update& update) {
  const auto& slice = update.slice;
  // float32 parameters and gradients are updated where they are; bfloat16 ones in a copy.
  auto parameter = slice.parameter.to(torch::kFloat32);
  auto step = scaled_gradient(update);
  if (slice.weight_decay != 0) step.add_(parameter, slice.weight_decay);
  if (update.options.momentum != 0) {
    step = torch::Tensor(update.states[0]).mul_(update.options.momentum).add_(step);
  }
  parameter.add_(step, -update.learning_rate);
  store(update, parameter);
}

}  // namespace

const Algorithm kSgd{sgd_states, sgd};

}  // namespace tessera::optim
