// AdamW (Loshchilov and Hutter, ICLR 2019), with states of 32, 16 or 8 bits: one fused kernel a
// slice.
#include <algorithm>
#include <tuple>

#include "tessera/kernels/adamw8bit.h"
#include "tessera/kernels/block_scaled.h"
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

/// The states of FP8-LM (Peng et al., 2023, section 2.2), but with a scale for each block instead of each
/// tensor, which no division among ranks cuts.
std::vector<StateKind> adamw_fp8_states(const OptimizerOptions&) {
  return {{"exp_avg_fp8", torch::kFloat8_e4m3fn},
          {"exp_avg_factor", torch::kFloat32, kStateBlock},
          {"exp_avg_sq_fp16", torch::kHalf},
          {"exp_avg_sq_factor", torch::kFloat32, kStateBlock}};
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

/// That of the first or second state, whose draws are not the parameter's.
std::optional<kernels::StochasticRounding> rounding_of(
    const std::optional<kernels::StochasticRounding>& parameter, uint64_t state) {
  auto rounding = parameter;
  if (rounding) rounding->seed ^= (state + 1) << 62;
  return rounding;
}

/// Some blocks at a time are brought to float32, which stay in the cache.
void adamw_fp8(const Update& update) {
  constexpr int64_t kBlocksAtOnce = 256;
  const auto& [slice, states] = std::tie(update.slice, update.states);
  const kernels::BlockScaled means{states[0], states[1]}, squares{states[2], states[3]};
  auto options = fused_options(update);
  const int64_t num_blocks = states[1].numel();
  for (int64_t first = 0; first < num_blocks; first += kBlocksAtOnce) {
    const int64_t last = std::min(first + kBlocksAtOnce, num_blocks);
    const auto part = [&](const torch::Tensor& of) {
      return of.defined() ? of.slice(0, first * kStateBlock, last * kStateBlock) : of;
    };
    const auto mean = means.blocks(first, last), square = squares.blocks(first, last);
    const auto m = kernels::unscaled(mean), v = kernels::unscaled(square);
    if (options.rounding)
      options.rounding->first_position = slice.first_position + first * kStateBlock;
    kernels::adamw(part(slice.parameter), part(slice.gradient), m, v, options, part(slice.copy));
    kernels::scale_into(m, mean, rounding_of(options.rounding, 0));
    kernels::scale_into(v, square, rounding_of(options.rounding, 1));
  }
}

}  // namespace

const Algorithm kAdamW{adamw_states, adamw};
const Algorithm kAdamW8bit{adamw8bit_states, adamw8bit};
const Algorithm kAdamWFp8{adamw_fp8_states, adamw_fp8};

}  // namespace tessera::optim
