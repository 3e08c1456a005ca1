#include "tessera/optim/optimizer.h"

#include <ATen/ops/_fused_adamw.h>

#include <utility>

#include "tessera/kernels/flat.h"

namespace tessera::optim {
namespace {

using torch::Tensor;

void check(const Slice& slice, const OptimizerOptions& options) {
  const auto& parameter = slice.parameter;
  TORCH_INTERNAL_ASSERT(parameter.sizes() == slice.gradient.sizes());
  TORCH_INTERNAL_ASSERT(!slice.copy.defined() || slice.copy.sizes() == parameter.sizes());
  TORCH_CHECK_VALUE(
      options.state_dtype == torch::kFloat32 ||
          (options.state_dtype == torch::kBFloat16 && options.type == OptimizerType::adamw),
      "optimizer: expected states in float32, or with adamw in bfloat16, got ",
      options.state_dtype);
  if (parameter.is_cpu()) return;
  TORCH_CHECK_VALUE(!options.stochastic_rounding && !slice.copy.defined() &&
                        parameter.scalar_type() == slice.gradient.scalar_type() &&
                        parameter.scalar_type() == options.state_dtype,
                    "optimizer: expected parameters, gradients and states of one dtype and no "
                    "stochastic rounding on ",
                    parameter.device(), ", got ", parameter.scalar_type(), ", ",
                    slice.gradient.scalar_type(), " and ", options.state_dtype);
}

}  // namespace

Optimizer::Optimizer(std::vector<Slice> slices, OptimizerOptions options)
    : slices_(std::move(slices)), options_(options), states_(slices_.size()) {
  for (const auto& slice : slices_) check(slice, options_);
}

void Optimizer::step(double learning_rate, double gradient_scale) {
  const torch::NoGradGuard no_grad;
  ++step_;
  for (size_t i = 0; i < slices_.size(); ++i) {
    if (options_.type == OptimizerType::adamw) {
      step_adamw(i, learning_rate, gradient_scale);
    } else {
      step_sgd(i, learning_rate, gradient_scale);
    }
  }
}

Optimizer::State& Optimizer::state(size_t index) {
  auto& state = states_[index];
  const bool adamw = options_.type == OptimizerType::adamw;
  if (state.exp_avg.defined() || (!adamw && options_.momentum == 0)) return state;
  const auto& parameter = slices_[index].parameter;
  const auto options = parameter.options().dtype(options_.state_dtype);
  state.exp_avg = torch::zeros(parameter.sizes(), options);
  if (adamw) state.exp_avg_sq = torch::zeros(parameter.sizes(), options);
  return state;
}

std::vector<std::pair<std::string, Tensor>> Optimizer::states(size_t slice) {
  const auto& kept = state(slice);
  if (!kept.exp_avg.defined()) return {};
  if (options_.type == OptimizerType::sgd) return {{"momentum_buffer", kept.exp_avg}};
  return {{"exp_avg", kept.exp_avg}, {"exp_avg_sq", kept.exp_avg_sq}};
}

void Optimizer::step_adamw(size_t index, double learning_rate, double gradient_scale) {
  const auto& slice = slices_[index];
  const auto& kept = state(index);
  if (!slice.parameter.is_cpu()) {
    const auto scalar = slice.parameter.options().dtype(torch::kFloat32);
    // LibTorch's kernel divides by its grad_scale (made for loss scaling).
    at::_fused_adamw_({slice.parameter}, {slice.gradient}, {kept.exp_avg}, {kept.exp_avg_sq}, {},
                      {torch::full({}, static_cast<double>(step_), scalar)}, learning_rate,
                      options_.beta1, options_.beta2, slice.weight_decay, options_.eps,
                      /*amsgrad=*/false, /*maximize=*/false,
                      torch::full({}, 1 / gradient_scale, scalar));
    return;
  }
  kernels::AdamWOptions update{.learning_rate = learning_rate,
                               .beta1 = options_.beta1,
                               .beta2 = options_.beta2,
                               .eps = options_.eps,
                               .weight_decay = slice.weight_decay,
                               .step = step_,
                               .gradient_scale = gradient_scale};
  if (options_.stochastic_rounding) {
    update.rounding = {
        .seed = options_.seed, .step = step_, .first_position = slice.first_position};
  }
  kernels::adamw(slice.parameter, slice.gradient, kept.exp_avg, kept.exp_avg_sq, update,
                 slice.copy);
}

void Optimizer::step_sgd(size_t index, double learning_rate, double gradient_scale) {
  const auto& slice = slices_[index];
  // float32 parameters and gradients are updated where they are; bfloat16 ones in a copy.
  auto parameter = slice.parameter.to(torch::kFloat32);
  auto update = slice.gradient.to(torch::kFloat32);
  if (gradient_scale != 1) update.mul_(gradient_scale);
  if (slice.weight_decay != 0) update.add_(parameter, slice.weight_decay);
  if (options_.momentum != 0) {
    update = state(index).exp_avg.mul_(options_.momentum).add_(update);
  }
  parameter.add_(update, -learning_rate);
  if (slice.copy.defined()) Tensor(slice.copy).copy_(parameter);
  if (parameter.is_same(slice.parameter)) return;
  if (options_.stochastic_rounding && slice.parameter.scalar_type() == torch::kBFloat16) {
    kernels::round_stochastically(
        parameter, slice.parameter,
        {.seed = options_.seed, .step = step_, .first_position = slice.first_position});
  } else {
    Tensor(slice.parameter).copy_(parameter);
  }
}

int64_t Optimizer::state_bytes() const {
  int64_t bytes = 0;
  for (const auto& state : states_) {
    for (const auto* tensor : {&state.exp_avg, &state.exp_avg_sq}) {
      if (tensor->defined()) bytes += static_cast<int64_t>(tensor->nbytes());
    }
  }
  return bytes;
}

}  // namespace tessera::optim
