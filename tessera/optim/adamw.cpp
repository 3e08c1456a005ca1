// AdamW (Loshchilov and Hutter, ICLR 2019): one fused kernel a slice.
#include <ATen/ops/_fused_adamw.h>

#include "tessera/kernels/flat.h"
#include "tessera/optim/algorithm.h"

namespace tessera::optim {
namespace {

std::vector<std::string> adamw_states(const OptimizerOptions&) { return {"exp_avg", "exp_avg_sq"}; }

void adamw(const Update& update) {
  const auto& [slice, states, options, learning_rate, gradient_scale, step] = update;
  if (!slice.parameter.is_cpu()) {
    const auto scalar = slice.parameter.options().dtype(torch::kFloat32);
    // LibTorch's kernel divides by its grad_scale (made for loss scaling).
    at::_fused_adamw_({slice.parameter}, {slice.gradient}, {states[0]}, {states[1]}, {},
                      {torch::full({}, static_cast<double>(step), scalar)}, learning_rate,
                      options.beta1, options.beta2, slice.weight_decay, options.eps,
                      /*amsgrad=*/false, /*maximize=*/false,
                      torch::full({}, 1 / gradient_scale, scalar));
    return;
  }
  kernels::AdamWOptions fused{.learning_rate = learning_rate,
                              .beta1 = options.beta1,
                              .beta2 = options.beta2,
                              .eps = options.eps,
                              .weight_decay = slice.weight_decay,
                              .step = step,
                              .gradient_scale = gradient_scale};
  if (options.stochastic_rounding) {
    fused.rounding = {.seed = options.seed, .step = step, .first_position = slice.first_position};
  }
  kernels::adamw(slice.parameter, slice.gradient, states[0], states[1], fused, slice.copy);
}

}  // namespace

const Algorithm kAdamW{adamw_states, adamw};

}  // namespace tessera::optim
