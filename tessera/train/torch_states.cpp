#include "tessera/train/torch_states.h"

#include <ATen/ops/zeros_like.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <memory>

namespace tessera::train {
namespace {

using torch::optim::Optimizer;
using torch::optim::OptimizerParamState;
using States = std::vector<std::pair<std::string, torch::Tensor>>;

OptimizerParamState* find_state(const Optimizer& optimizer, const torch::Tensor& parameter) {
  const auto found = optimizer.state().find(parameter.unsafeGetTensorImpl());
  return found == optimizer.state().end() ? nullptr : found->second.get();
}

template <typename State, typename Options>
States adam_states(Optimizer& optimizer, const torch::optim::OptimizerParamGroup& group,
                   const torch::Tensor& parameter, bool create) {
  const bool amsgrad = static_cast<const Options&>(group.options()).amsgrad();
  auto* state = static_cast<State*>(find_state(optimizer, parameter));
  if (state == nullptr) {
    if (!create) return {};
    auto made = std::make_unique<State>();
    made->exp_avg(at::zeros_like(parameter));
    made->exp_avg_sq(at::zeros_like(parameter));
    if (amsgrad) made->max_exp_avg_sq(at::zeros_like(parameter));
    state = made.get();
    optimizer.state()[parameter.unsafeGetTensorImpl()] = std::move(made);
  }
  States states{{"exp_avg", state->exp_avg()}, {"exp_avg_sq", state->exp_avg_sq()}};
  if (amsgrad) states.emplace_back("max_exp_avg_sq", state->max_exp_avg_sq());
  return states;
}

States sgd_states(Optimizer& optimizer, const torch::optim::OptimizerParamGroup& group,
                  const torch::Tensor& parameter, bool create) {
  if (static_cast<const torch::optim::SGDOptions&>(group.options()).momentum() == 0) return {};
  auto* state = static_cast<torch::optim::SGDParamState*>(find_state(optimizer, parameter));
  if (state == nullptr) {
    if (!create) return {};
    auto made = std::make_unique<torch::optim::SGDParamState>();
    made->momentum_buffer(at::zeros_like(parameter));
    state = made.get();
    optimizer.state()[parameter.unsafeGetTensorImpl()] = std::move(made);
  }
  return {{"momentum_buffer", state->momentum_buffer()}};
}

States rmsprop_states(Optimizer& optimizer, const torch::optim::OptimizerParamGroup& group,
                      const torch::Tensor& parameter, bool create) {
  const auto& options = static_cast<const torch::optim::RMSpropOptions&>(group.options());
  auto* state = static_cast<torch::optim::RMSpropParamState*>(find_state(optimizer, parameter));
  if (state == nullptr) {
    if (!create) return {};
    auto made = std::make_unique<torch::optim::RMSpropParamState>();
    made->step(0);
    made->square_avg(at::zeros_like(parameter));
    if (options.momentum() > 0) made->momentum_buffer(at::zeros_like(parameter));
    if (options.centered()) made->grad_avg(at::zeros_like(parameter));
    state = made.get();
    optimizer.state()[parameter.unsafeGetTensorImpl()] = std::move(made);
  }
  States states{{"square_avg", state->square_avg()}};
  if (options.momentum() > 0) states.emplace_back("momentum_buffer", state->momentum_buffer());
  if (options.centered()) states.emplace_back("grad_avg", state->grad_avg());
  return states;
}

}  // namespace

bool knows_states(const Optimizer& optimizer) {
  return dynamic_cast<const torch::optim::AdamW*>(&optimizer) != nullptr ||
         dynamic_cast<const torch::optim::Adam*>(&optimizer) != nullptr ||
         dynamic_cast<const torch::optim::SGD*>(&optimizer) != nullptr ||
         dynamic_cast<const torch::optim::RMSprop*>(&optimizer) != nullptr ||
         dynamic_cast<const torch::optim::Adagrad*>(&optimizer) != nullptr;
}

States torch_states(Optimizer& optimizer, const torch::optim::OptimizerParamGroup& group,
                    const torch::Tensor& parameter, bool create) {
  const torch::NoGradGuard no_grad;
  if (dynamic_cast<torch::optim::AdamW*>(&optimizer) != nullptr) {
    return adam_states<torch::optim::AdamWParamState, torch::optim::AdamWOptions>(
        optimizer, group, parameter, create);
  }
  if (dynamic_cast<torch::optim::Adam*>(&optimizer) != nullptr) {
    return adam_states<torch::optim::AdamParamState, torch::optim::AdamOptions>(optimizer, group,
                                                                                parameter, create);
  }
  if (dynamic_cast<torch::optim::RMSprop*>(&optimizer) != nullptr) {
    return rmsprop_states(optimizer, group, parameter, create);
  }
  if (dynamic_cast<torch::optim::Adagrad*>(&optimizer) != nullptr) {
    auto* state = static_cast<torch::optim::AdagradParamState*>(find_state(optimizer, parameter));
    if (state == nullptr) return {};
    return {{"sum", state->sum()}};
  }
  TORCH_CHECK_VALUE(dynamic_cast<torch::optim::SGD*>(&optimizer) != nullptr,
                    "save_state: expected torch::optim::Adam, AdamW, SGD, RMSprop or Adagrad, got "
                    "another optimizer");
  return sgd_states(optimizer, group, parameter, create);
}

std::set<std::string> torch_state_names(const Optimizer& optimizer) {
  std::set<std::string> names;
  for (const auto& group : optimizer.param_groups()) {
    const auto& options = group.options();
    if (const auto* sgd = dynamic_cast<const torch::optim::SGDOptions*>(&options)) {
      if (sgd->momentum() != 0) names.insert("momentum_buffer");
      continue;
    }
    if (const auto* rmsprop = dynamic_cast<const torch::optim::RMSpropOptions*>(&options)) {
      names.insert("square_avg");
      if (rmsprop->momentum() > 0) names.insert("momentum_buffer");
      if (rmsprop->centered()) names.insert("grad_avg");
      continue;
    }
    if (dynamic_cast<const torch::optim::AdagradOptions*>(&options) != nullptr) {
      names.insert("sum");
      continue;
    }
    if (!knows_states(optimizer)) continue;
    names.insert({"exp_avg", "exp_avg_sq"});
    const auto* adam = dynamic_cast<const torch::optim::AdamOptions*>(&options);
    const auto* adamw = dynamic_cast<const torch::optim::AdamWOptions*>(&options);
    if (adam != nullptr ? adam->amsgrad() : adamw != nullptr && adamw->amsgrad()) {
      names.insert("max_exp_avg_sq");
    }
  }
  return names;
}

namespace {

/// f(state) with the state of an optimizer that counts steps.
template <typename F>
void with_step(OptimizerParamState* state, const F& f) {
  if (auto* adamw = dynamic_cast<torch::optim::AdamWParamState*>(state)) f(*adamw);
  if (auto* adam = dynamic_cast<torch::optim::AdamParamState*>(state)) f(*adam);
  if (auto* rmsprop = dynamic_cast<torch::optim::RMSpropParamState*>(state)) f(*rmsprop);
  if (auto* adagrad = dynamic_cast<torch::optim::AdagradParamState*>(state)) f(*adagrad);
}

}  // namespace

int64_t torch_step(const Optimizer& optimizer, const torch::Tensor& parameter) {
  int64_t step = 0;
  with_step(find_state(optimizer, parameter), [&](const auto& state) { step = state.step(); });
  return step;
}

void set_torch_step(Optimizer& optimizer, const torch::Tensor& parameter, int64_t step) {
  with_step(find_state(optimizer, parameter), [&](auto& state) { state.step(step); });
}

}  // namespace tessera::train
