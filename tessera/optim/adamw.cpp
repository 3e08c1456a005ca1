// AdamW (Loshchilov and Hutter, ICLR 2019), with states of 32, 16 or 8 bits: one fused kernel a
// slice.
#include "tessera/kernels/adamw8bit.h"
#include "tessera/kernels/flat.h"
#include "tessera/optim/algorithm.h"

namespace tessera::optim {
namespace {

std::vector<StateKind> adamw_states(const OptimizerOptions& options) {
  return {{"exp_avg", options.state_dtype}, {"exp_avg_sq", options.state_dtype}};
}

std::vector<StateKind> adamw8bit_states(const OptimizerOptions&) {
  return {{"exp_avg_codes", torch::kByte},
          {"exp_avg_absmax", torch::kFloat32, kStateBlock},
          {"exp_avg_sq_codes", torch::kByte},
          {"exp_avg_sq_absmax", torch::kFloat32, kStateBlock}};
}

kernels::AdamWOptions fused_options(const Update& update) {
  const auto& options = update.options;
  kernels::AdamWOptions fused{.learning_rate = update.learning_rate,
                              .beta1 = options.beta1,
                              .beta2 = options.beta2,
                              .eps = options.eps,
                              .weight_decay = update.slice.weight_decay,
                              .step = update.step,
                              .gradient_scale = update.gradient_scale};
  if (options.stochastic_rounding) {
    fused.rounding = {
        .seed = options.seed, .step = update.step, .first_position = update.slice.first_position};
  }
  return fused;
}

void adamw(const Update& update) {
  const auto& slice = update.slice;
  const auto& states = update.states;
  kernels::adamw(slice.parameter, slice.gradient, states[0], states[1], fused_options(update),
                 slice.copy);
}

void adamw8bit(const Update& update) {
  const auto& states = update.states;
  const auto& slice = update.slice;
  kernels::adamw8bit(slice.parameter, slice.gradient, {states[0], states[1]},
                     {states[2], states[3]}, fused_options(update), slice.copy);
}

}  // namespace

const Algorithm kAdamW{adamw_states, adamw};
const Algorithm kAdamW8bit{adamw8bit_states, adamw8bit};

}  // namespace tessera::optim
