// Lion (Chen et al., Symbolic Discovery of Optimization Algorithms, NeurIPS 2023, algorithm 2).
#include "tessera/optim/algorithm.h"

namespace tessera::optim {
namespace {

std::vector<StateKind> lion_states(const OptimizerOptions&) { return {{"exp_avg"}}; }

void lion(const Update& update) {
  const auto& options = update.options;
  auto parameter = update.slice.parameter.to(torch::kFloat32);
  const auto gradient = scaled_gradient(update);
  const torch::Tensor mean = update.states[0];
  auto direction = mean.lerp(gradient, 1 - options.beta1).sign_();
  mean.lerp_(gradient, 1 - options.beta2);
  parameter.mul_(1 - update.learning_rate * update.slice.weight_decay);
  parameter.add_(direction, -update.learning_rate);
  store(update, parameter);
}

}  // namespace

const Algorithm kLion{lion_states, lion};

}  // namespace tessera::optim
