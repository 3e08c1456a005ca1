#include "tessera/kernels/fp8_linear.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "tessera/autograd/gradient_sink.h"
#include "tessera/kernels/cpu/matmul.h"
#include "tessera/kernels/fp8_recipe.h"

namespace tessera::kernels {
namespace {

/// Products of 8-bit numbers held in wider types, which is exact.
class EmulatedProducts : public LinearProducts {
 public:
  EmulatedProducts(const Fp8Recipe& recipe, Fp8WatchPtr watch, Fp8HistoryPtr history)
      : recipe_(recipe), watch_(std::move(watch)), history_(std::move(history)) {}

  at::Tensor forward(const at::Tensor& rows, const at::Tensor& weight) const override {
    const auto x = rounded(rows, Fp8Operand::input, Sum::along_rows);
    const auto w = rounded(weight, Fp8Operand::weight, Sum::along_rows);
    return product(x, w.values.t(), w.factor, rows.scalar_type());
  }

  at::Tensor input_gradient(const at::Tensor& gradient, const at::Tensor& weight,
                            bool /*trains*/) const override {
    const auto g = rounded(gradient, Fp8Operand::gradient, Sum::along_rows);
    const auto w = rounded(weight, Fp8Operand::weight, Sum::along_columns);
    return product(g, w.values, w.factor, gradient.scalar_type());
  }

  at::Tensor weight_gradient(const at::Tensor& sink, const at::Tensor& rows,
                             const at::Tensor& gradient, bool in_out,
                             const at::TensorOptions& options) const override {
    if (recipe_.matmul == Matmul::fp8_row_wgrad16) {
      return weight_gradient_in_compute(sink, rows, gradient, in_out, options);
    }
    const auto g = rounded(gradient, Fp8Operand::gradient, Sum::along_columns);
    const auto x = rounded(rows, Fp8Operand::input, Sum::along_columns);
    const auto &left = in_out ? x : g, &right = in_out ? g : x;
    const float factor = g.factor * x.factor;
    const auto target = sink.defined() ? sink.scalar_type() : options.dtype().toScalarType();
    if (is_result(left.values, target)) {
      return multiply_into(sink, left.values.t(), right.values, options, factor);
    }
    const auto wide =
        multiply_into({}, left.values.t(), right.values, options.dtype(at::kFloat), factor);
    return autograd::hand_over(sink, wide, target);
  }

 private:
  Fp8Rounded rounded(const at::Tensor& matrix, Fp8Operand operand, Sum sum) const {
    const bool narrow =
        matrix.device().is_cpu() ? multiplies_bf16_into_float() : matrix.element_size() == 2;
    const auto scale = given_scale(recipe_, history_, operand);
    const auto scaling = scaling_of(recipe_, operand, sum);
    const bool counts = watch_->counts && sum == Sum::along_rows;  // each operand once
    auto result = round_to_fp8(matrix, scaling, narrow ? at::kBFloat16 : at::kFloat,
                               {.scale = scale, .counts = counts});
    auto& largest = watch_->amax[static_cast<size_t>(operand)];
    largest = std::max(largest, result.amax);
    if (counts)
      watch_->losses[static_cast<size_t>(operand)] += losses_of(matrix, result, scaling, scale);
    return result;
  }

  static Fp8Losses losses_of(const at::Tensor& matrix, const Fp8Rounded& rounded,
                             const Fp8Scaling& scaling, std::optional<float> given) {
    Fp8Losses losses{.numbers = matrix.numel(), .underflows = rounded.underflows};
    if (rounded.amax == 0) return losses;
    // Where there are several scales, that of the largest number is reported. Its own holds all numbers, a given one may not.
    losses.least_scale = given ? *given : fp8_scale(rounded.amax, scaling.type, scaling.rule);
    const float bound = largest_of(scaling.type) / losses.least_scale;
    if (given && rounded.amax > bound) losses.overflows = num_above(matrix, bound);
    return losses;
  }

  /// Can `multiply` leave a result of this type of such operands?
  static bool is_result(const at::Tensor& operand, at::ScalarType type) {
    return type == at::kFloat || type == operand.scalar_type();
  }

  static at::Tensor product(const Fp8Rounded& left, const at::Tensor& right, float factor,
                            at::ScalarType type) {
    const auto used = is_result(left.values, type) ? type : at::kFloat;
    auto result =
        at::empty({left.values.size(0), right.size(1)}, left.values.options().dtype(used));
    multiply(result, left.values, right, /*accumulate=*/false, left.factor * factor);
    return result.to(type);
  }

  Fp8Recipe recipe_;
  Fp8WatchPtr watch_;
  Fp8HistoryPtr history_;
};

}  // namespace

Fp8Type type_of(const Fp8Recipe& recipe, Fp8Operand operand) {
  const bool by_tensor =
      recipe.matmul == Matmul::fp8_tensor || recipe.matmul == Matmul::fp8_delayed;
  const bool wide = operand == Fp8Operand::gradient && recipe.format == Fp8Format::hybrid;
  return by_tensor && wide ? Fp8Type::e5m2 : Fp8Type::e4m3;
}

bool keeps_weight(const Fp8Recipe& recipe, Fp8Operand operand) {
  return recipe.weights_are_fp8 && operand == Fp8Operand::weight;
}

Fp8Scaling scaling_of(const Fp8Recipe& recipe, Fp8Operand operand, Sum sum) {
  const auto type = type_of(recipe, operand);
  const auto along = [&](int64_t count, Fp8ScaleRule rule) {
    const Fp8Scaling scaling{.type = type, .rows = 1, .columns = count, .rule = rule};
    return sum == Sum::along_rows ? scaling : scaling.transposed();
  };
  switch (recipe.matmul) {
    case Matmul::fp8_row:
      return along(0, Fp8ScaleRule::power_of_two);
    case Matmul::fp8_row_wgrad16:
      if (operand == Fp8Operand::weight && sum == Sum::along_columns) {
        return {.type = type, .rule = Fp8ScaleRule::power_of_two};
      }
      return along(0, Fp8ScaleRule::power_of_two);
    case Matmul::fp8_block:
      if (operand == Fp8Operand::weight) {
        return {.type = type, .rows = 128, .columns = 128, .rule = Fp8ScaleRule::block};
      }
      return along(128, Fp8ScaleRule::block);
    case Matmul::mxfp8:
      return along(32, Fp8ScaleRule::e8m0);
    case Matmul::as_compute:
    case Matmul::fp8_tensor:
    case Matmul::fp8_delayed:
      if (keeps_weight(recipe, operand)) {
        return {.type = type, .rule = Fp8ScaleRule::power_of_two};
      }
      return {.type = type};
  }
  __builtin_unreachable();
}

at::Tensor weight_gradient_in_compute(const at::Tensor& sink, const at::Tensor& rows,
                                      const at::Tensor& gradient, bool in_out,
                                      const at::TensorOptions& options) {
  const auto& [left, right] = in_out ? std::tie(rows, gradient) : std::tie(gradient, rows);
  return multiply_into(sink, left.t(), right, options);
}

std::optional<float> given_scale(const Fp8Recipe& recipe, const Fp8HistoryPtr& history,
                                 Fp8Operand operand) {
  if (!history || keeps_weight(recipe, operand)) return std::nullopt;
  return history->scale(operand);
}

Fp8History::Fp8History(const Fp8Recipe& recipe)
    : recipe_(recipe), state_(at::zeros({kFp8Operands, 1 + recipe.history})) {
  state_.select(1, 0).fill_(1);
}

float Fp8History::scale(Fp8Operand operand) const {
  return state_.const_data_ptr<float>()[static_cast<int64_t>(operand) * state_.size(1)];
}

void Fp8History::finish_step(int64_t step, const Fp8Amax& seen) {
  for (int i = 0; i < kFp8Operands; ++i) {
    float* scale = state_.mutable_data_ptr<float>() + i * state_.size(1);
    float* history = scale + 1;
    std::shift_right(history, history + recipe_.history, 1);
    history[0] = seen[static_cast<size_t>(i)];
    if (step % recipe_.interval != 0) continue;
    const float amax = recipe_.amax == AmaxOf::max
                           ? *std::max_element(history, history + recipe_.history)
                           : history[0];
    if (amax == 0 || !std::isfinite(amax)) continue;
    const float largest = largest_of(type_of(recipe_, static_cast<Fp8Operand>(i)));
    *scale = std::min(std::ldexp(largest / amax, -static_cast<int>(recipe_.margin)), FLT_MAX);
  }
}

LinearProductsPtr fp8_products(const Fp8Recipe& recipe, Fp8WatchPtr watch, Fp8HistoryPtr history) {
  TORCH_INTERNAL_ASSERT(recipe.matmul != Matmul::as_compute);
  TORCH_INTERNAL_ASSERT((history != nullptr) == (recipe.matmul == Matmul::fp8_delayed));
  if (recipe.by_device) return fp8_products_of_device(recipe, std::move(watch), std::move(history));
  return std::make_shared<EmulatedProducts>(recipe, std::move(watch), std::move(history));
}

}  // namespace tessera::kernels
