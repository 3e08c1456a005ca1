// What the recipes of 8-bit products round to which type, and what shares a scale, for both ways to multiply.
#pragma once

#include <optional>

#include "tessera/base/fp8.h"
#include "tessera/kernels/fp8.h"
#include "tessera/kernels/fp8_linear.h"

namespace tessera::kernels {

/// Along which dimension of an operand a product adds up.
enum class Sum { along_rows, along_columns };

Fp8Type type_of(const Fp8Recipe& recipe, Fp8Operand operand);

/// Is it a weight that was rounded where it is kept?
bool keeps_weight(const Fp8Recipe& recipe, Fp8Operand operand);

Fp8Scaling scaling_of(const Fp8Recipe& recipe, Fp8Operand operand, Sum sum);

/// What `history`, if there is one, has for an operand in the place of its own scale.
std::optional<float> given_scale(const Fp8Recipe& recipe, const Fp8HistoryPtr& history,
                                 Fp8Operand operand);

/// LinearProducts::weight_gradient of numbers that are not rounded: fp8_row_wgrad16's.
at::Tensor weight_gradient_in_compute(const at::Tensor& sink, const at::Tensor& rows,
                                      const at::Tensor& gradient, bool in_out,
                                      const at::TensorOptions& options);

/// Products by the units of a device (fp8_products).
LinearProductsPtr fp8_products_of_device(const Fp8Recipe& recipe, Fp8WatchPtr watch,
                                         Fp8HistoryPtr history);

}  // namespace tessera::kernels
