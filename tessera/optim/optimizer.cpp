#include "tessera/optim/optimizer.h"

#include <ATen/ops/_fused_adamw.h>

#include <utility>

namespace tessera::optim {

using torch::Tensor;

Optimizer::Optimizer(std::vector<Slice> slices, OptimizerOptions options)
    : slices_(std::move(slices)), options_(options) {
  for (const auto& slice : slices_) TORCH_INTERNAL_ASSERT(slice.parameter.sizes() == slice.gradient.sizes());
}

void Optimizer::step(double learning_rate, double gradient_scale) {
  const torch::NoGradGuard no_grad;
  states_.resize(slices_.size());
  if (options_.type == OptimizerType::adamw) {
    step_adamw(learning_rate, gradient_scale);
  } else {
    step_sgd(learning_rate, gradient_scale);
  }
}

void Optimizer::step_adamw(double learning_rate, double gradient_scale) {
  for (size_t i = 0; i < slices_.size(); ++i) {
    auto& [parameter, gradient, weight_decay] = slices_[i];
    auto& state = states_[i];
    if (!state.step.defined()) {
      state = {.exp_avg = torch::zeros_like(parameter),
               .exp_avg_sq = torch::zeros_like(parameter),
               .step = torch::zeros({}, parameter.options().dtype(torch::kFloat32))};
    }
    state.step += 1;
    // The kernel divides by its grad_scale (made for loss scaling); no scale, no extra work.
    std::optional<Tensor> divisor;
    if (gradient_scale != 1) divisor = torch::full({}, 1 / gradient_scale, parameter.options().dtype(torch::kFloat32));
    at::_fused_adamw_({parameter}, {gradient}, {state.exp_avg}, {state.exp_avg_sq}, {}, {state.step}, learning_rate,
                      options_.beta1, options_.beta2, weight_decay, options_.eps, /*amsgrad=*/false,
                      /*maximize=*/false, divisor);
  }
}

void Optimizer::step_sgd(double learning_rate, double gradient_scale) {
  for (size_t i = 0; i < slices_.size(); ++i) {
    auto& [parameter, gradient, weight_decay] = slices_[i];
    if (gradient_scale != 1) gradient.mul_(gradient_scale);
    if (weight_decay != 0) gradient.add_(parameter, weight_decay);
    auto update = gradient;
    if (options_.momentum != 0) {
      auto& velocity = states_[i].exp_avg;
      if (velocity.defined()) {
        velocity.mul_(options_.momentum).add_(gradient);
      } else {
        velocity = gradient.clone();
      }
      update = velocity;
    }
    parameter.add_(update, -learning_rate);
  }
}

}  // namespace tessera::optim
