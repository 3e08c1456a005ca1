// What LibTorch's optimizers keep for a parameter.
#pragma once

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace tessera::train {

/// Adam, AdamW, SGD, RMSprop or Adagrad: optimizers whose state is a tensor like the parameter, or
/// several, and a count of steps.
bool knows_states(const torch::optim::Optimizer& optimizer);

/// What the optimizer keeps for a parameter, by torch's names ("exp_avg", "exp_avg_sq",
/// "max_exp_avg_sq", "momentum_buffer", "square_avg", "grad_avg", "sum"). If `create`, zeros where
/// nothing is kept yet. ValueError: an optimizer that is none of these.
std::vector<std::pair<std::string, torch::Tensor>> torch_states(
    torch::optim::Optimizer& optimizer, const torch::optim::OptimizerParamGroup& group,
    const torch::Tensor& parameter, bool create);

/// The names of those that `optimizer` keeps, as its options are now.
std::set<std::string> torch_state_names(const torch::optim::Optimizer& optimizer);

/// Updates of the parameter so far, where the optimizer counts them; 0 for SGD.
int64_t torch_step(const torch::optim::Optimizer& optimizer, const torch::Tensor& parameter);
void set_torch_step(torch::optim::Optimizer& optimizer, const torch::Tensor& parameter,
                    int64_t step);

}  // namespace tessera::train
