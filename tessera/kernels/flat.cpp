#include "tessera/kernels/flat.h"

#include <algorithm>
#include <cmath>

#include "tessera/kernels/fused.h"
#include "tessera/kernels/observed.h"

namespace tessera::kernels {
namespace {

/// splitmix64's output function (Steele et al., OOPSLA 2014).
uint64_t mixed(uint64_t x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

RandomBits bits_of(const StochasticRounding& rounding) {
  const uint64_t key = mixed(mixed(rounding.seed) ^ static_cast<uint64_t>(rounding.step));
  return {.key = {static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32)},
          .first = rounding.first_position};
}

/// The type of `x`, which is like `other` in device and length.
Element any_type_of(const at::Tensor& x, const at::Tensor& other) {
  TORCH_INTERNAL_ASSERT(x.device() == other.device() && x.is_contiguous() &&
                        x.numel() == other.numel());
  return element_of(x.scalar_type());
}

/// The same of what AdamW takes.
Element type_of(const at::Tensor& x, const at::Tensor& other) {
  const Element type = any_type_of(x, other);
  TORCH_INTERNAL_ASSERT(type == Element::float32 || type == Element::bfloat16);
  return type;
}

const float* scalar_or_null(const at::Tensor& x, const at::Tensor& other) {
  TORCH_INTERNAL_ASSERT(!x.defined() || (x.device() == other.device() && x.numel() == 1));
  return x.defined() ? x.const_data_ptr<float>() : nullptr;
}

}  // namespace

void adamw(const at::Tensor& parameter, const at::Tensor& gradient, const at::Tensor& exp_avg,
           const at::Tensor& exp_avg_sq, const AdamWOptions& options, const at::Tensor& copy) {
  const Element state = type_of(exp_avg, parameter);
  TORCH_INTERNAL_ASSERT(type_of(exp_avg_sq, parameter) == state);
  TORCH_INTERNAL_ASSERT(!copy.defined() || type_of(copy, parameter) == Element::bfloat16);
  const auto step = static_cast<double>(options.step);
  const double correction = 1 - std::pow(options.beta1, step);
  const double correction_sq = 1 - std::pow(options.beta2, step);
  const Observed run("tessera::adamw", {parameter, parameter, gradient, exp_avg, exp_avg,
                                        exp_avg_sq, exp_avg_sq, copy});
  fused_kernels(parameter).adamw(
      {.parameter = parameter.data_ptr(),
       .gradient = gradient.const_data_ptr(),
       .exp_avg = exp_avg.data_ptr(),
       .exp_avg_sq = exp_avg_sq.data_ptr(),
       .copy = copy.defined() ? copy.data_ptr() : nullptr,
       .found_inf = scalar_or_null(options.found_inf, parameter),
       .gradient_factor = scalar_or_null(options.gradient_factor, parameter),
       .gradient_scale = static_cast<float>(options.gradient_scale),
       .keep = static_cast<float>(1 - options.learning_rate * options.weight_decay),
       .blend = static_cast<float>(1 - options.beta1),
       .blend_sq = static_cast<float>(1 - options.beta2),
       .beta_sq = static_cast<float>(options.beta2),
       .step_size = static_cast<float>(options.learning_rate / correction),
       .reciprocal_root = static_cast<float>(1 / std::sqrt(correction_sq)),
       .eps = static_cast<float>(options.eps),
       .stochastic = options.rounding.has_value(),
       .bits = bits_of(options.rounding.value_or(StochasticRounding{})),
       .count = parameter.numel(),
       .parameter_type = type_of(parameter, parameter),
       .gradient_type = type_of(gradient, parameter),
       .state_type = state});
}

void round_stochastically(const at::Tensor& from, const at::Tensor& to,
                          const StochasticRounding& rounding) {
  TORCH_INTERNAL_ASSERT(from.is_contiguous() && from.scalar_type() == at::kFloat &&
                        to.is_contiguous() && to.scalar_type() != at::kFloat &&
                        from.device() == to.device() && from.numel() == to.numel());
  const Observed run("tessera::round_stochastically", {from, to});
  fused_kernels(from).round_stochastically({.from = from.const_data_ptr<float>(),
                                            .to = to.data_ptr(),
                                            .bits = bits_of(rounding),
                                            .count = to.numel(),
                                            .type = element_of(to.scalar_type())});
}

uint32_t drop_threshold(double probability) {
  return static_cast<uint32_t>(std::min(std::round(probability * 0x1p32), 0x1p32 - 1));
}

std::array<uint32_t, 2> random_key(const DropoutKey& key) {
  const uint64_t mixed_key =
      mixed(mixed(mixed(key.seed) ^ static_cast<uint64_t>(key.step)) ^ key.layer);
  return {static_cast<uint32_t>(mixed_key), static_cast<uint32_t>(mixed_key >> 32)};
}

void drop(const at::Tensor& from, const at::Tensor& to, double probability, const DropoutKey& key) {
  TORCH_INTERNAL_ASSERT(from.scalar_type() == to.scalar_type());
  TORCH_INTERNAL_ASSERT(key.row <= key.row_stride);
  const auto halves = random_key(key);
  const Observed run("tessera::dropout", {from, to});
  fused_kernels(from).drop({.x = from.const_data_ptr(),
                            .y = to.data_ptr(),
                            .threshold = drop_threshold(probability),
                            .scale = static_cast<float>(1 / (1 - probability)),
                            .bits = {.key = {halves[0], halves[1]}, .first = key.first_position},
                            .count = to.numel(),
                            .row = key.row,
                            .row_stride = key.row_stride,
                            .type = any_type_of(from, to)});
}

at::Tensor sum_of_squares(const at::Tensor& values) {
  const auto dtype = values.scalar_type();
  TORCH_INTERNAL_ASSERT(values.is_contiguous());
  if (fused_kernels(values.device().type()) == nullptr || dtype == at::kDouble) {
    return values.to(at::kDouble).square().sum();
  }
  TORCH_INTERNAL_ASSERT(dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf);
  const Observed run("tessera::sum_of_squares", {values});
  return fused_kernels(values).sum_of_squares(values);
}

}  // namespace tessera::kernels
