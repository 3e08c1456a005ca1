// Products of 8-bit numbers by a device's own units.
#include <ATen/ATen.h>

#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "tessera/autograd/gradient_sink.h"
#include "tessera/kernels/fp8_codes.h"
#include "tessera/kernels/fp8_linear.h"
#include "tessera/kernels/fp8_recipe.h"
#include "tessera/kernels/scaled_product.h"

namespace tessera::kernels {
namespace {

enum Column { kAmax, kLeastScale, kNumColumns };
enum Lost { kUnderflows, kOverflows, kNumLost };

constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// What a device has seen of one operand; a row of Fp8Watch::on_device.
class Seen {
 public:
  Seen(Fp8Watch& watch, Fp8Operand operand, at::Device device) {
    if (!watch.on_device.defined()) {
      watch.on_device =
          at::zeros({kFp8Operands, kNumColumns}, at::device(device).dtype(at::kFloat));
      watch.on_device.select(1, kLeastScale).fill_(kInfinity);
      watch.lost_on_device =
          at::zeros({kFp8Operands, kNumLost}, at::device(device).dtype(at::kLong));
    }
    row_ = watch.on_device[static_cast<int64_t>(operand)];
    lost_ = watch.lost_on_device[static_cast<int64_t>(operand)];
  }

  /// Where codes tell of what they see and, if that `counts`, lose.
  void listen(Fp8CodesOptions& options, bool counts) const {
    options.largest = row_[kAmax];
    if (counts) options.least = row_[kLeastScale], options.lost = lost_;
  }

 private:
  at::Tensor row_, lost_;
};

/// The other order of the gradient that this thread's last product rounded: the product for the weight
/// takes it, if it comes next. Released when a forward begins.
struct OtherOrder {
  const void* layer = nullptr;
  at::Tensor of;
  ScaledOperand codes;
};
OtherOrder& other_order() {
  thread_local OtherOrder kept;
  return kept;
}

class DeviceProducts : public LinearProducts {
 public:
  DeviceProducts(const Fp8Recipe& recipe, Fp8WatchPtr watch, Fp8HistoryPtr history)
      : recipe_(recipe), watch_(std::move(watch)), history_(std::move(history)) {}

  at::Tensor forward(const at::Tensor& rows, const at::Tensor& weight) const override {
    other_order() = {};
    const auto x = rounded(rows, Fp8Operand::input, Sum::along_rows);
    const auto w = rounded(weight, Fp8Operand::weight, Sum::along_rows);
    return product(x, w, {rows.size(0), weight.size(0)}, rows.scalar_type(), sums_fast());
  }

  at::Tensor input_gradient(const at::Tensor& gradient, const at::Tensor& weight,
                            bool trains) const override {
    const auto g = gradient_of_both(gradient, trains);
    const auto w = rounded(weight, Fp8Operand::weight, Sum::along_columns);
    return product(g, w, {gradient.size(0), weight.size(1)}, gradient.scalar_type());
  }

  at::Tensor weight_gradient(const at::Tensor& sink, const at::Tensor& rows,
                             const at::Tensor& gradient, bool in_out,
                             const at::TensorOptions& options) const override {
    if (recipe_.matmul == Matmul::fp8_row_wgrad16) {
      return weight_gradient_in_compute(sink, rows, gradient, in_out, options);
    }
    const auto g = gradient_of_weight(gradient);
    const auto x = rounded(rows, Fp8Operand::input, Sum::along_columns);
    const int64_t out = gradient.size(1), in = rows.size(1);
    const auto target = sink.defined() ? sink.scalar_type() : options.dtype().toScalarType();
    const auto result =
        in_out ? product(x, g, {in, out}, target) : product(g, x, {out, in}, target);
    return autograd::hand_over(sink, result, target);
  }

 private:
  struct Size {
    int64_t rows, columns;
  };

  /// Do recipes with blocks have sums of fewer bits? cuBLAS has none of them.
  bool sums_fast() const {
    return recipe_.matmul != Matmul::fp8_block && recipe_.matmul != Matmul::mxfp8;
  }

  static bool has_one_scale(const Fp8Scaling& scaling) {
    return scaling.rows == 0 && scaling.columns == 0;
  }

  /// What codes for a product along `sum` are made with. The watch is told of each operand once, by the first such product:
  /// what the backward reads again has been seen.
  Fp8CodesOptions options_for(const at::Tensor& matrix, Fp8Operand operand, Sum sum) const {
    const bool along_rows = sum == Sum::along_rows;
    const bool counts = watch_->counts && along_rows;
    Fp8CodesOptions options{.plain = along_rows,
                            .transposed = !along_rows,
                            .multiple = fp8_code_multiple(recipe_.matmul),
                            .scale = given_scale(recipe_, history_, operand)};
    if (along_rows || operand == Fp8Operand::gradient) {
      Seen(*watch_, operand, matrix.device()).listen(options, counts);
    }
    if (counts) watch_->losses[static_cast<size_t>(operand)].numbers += matrix.numel();
    return options;
  }

  ScaledOperand rounded(const at::Tensor& matrix, Fp8Operand operand, Sum sum) const {
    const auto scaling = scaling_of(recipe_, operand, sum);
    const auto made = fp8_codes(matrix, scaling, options_for(matrix, operand, sum));
    return operand_of(made, scaling, sum == Sum::along_columns);
  }

  /// The gradient as the product with the weight takes it; the other order is kept for the next product, if the weight
  /// has one.
  ScaledOperand gradient_of_both(const at::Tensor& gradient, bool trains) const {
    constexpr auto kGradient = Fp8Operand::gradient;
    if (recipe_.matmul == Matmul::fp8_row_wgrad16 || !trains) {
      return rounded(gradient, kGradient, Sum::along_rows);
    }
    const auto scaling = scaling_of(recipe_, kGradient, Sum::along_rows);
    auto options = options_for(gradient, kGradient, Sum::along_rows);
    Fp8CodesOfBoth made;
    if (has_one_scale(scaling)) {
      options.transposed = true;
      made.plain = made.transposed = fp8_codes(gradient, scaling, options);
    } else {
      made = fp8_codes_of_both(gradient, scaling, options);
    }
    const auto other = has_one_scale(scaling) ? scaling : scaling.transposed();
    other_order() = {
        .layer = this, .of = gradient, .codes = operand_of(made.transposed, other, true)};
    return operand_of(made.plain, scaling, /*transposed=*/false);
  }

  ScaledOperand gradient_of_weight(const at::Tensor& gradient) const {
    auto kept = std::exchange(other_order(), {});
    if (kept.layer == this && kept.of.is_same(gradient)) return kept.codes;
    return rounded(gradient, Fp8Operand::gradient, Sum::along_columns);
  }

  static at::Tensor product(const ScaledOperand& left, const ScaledOperand& right, Size size,
                            at::ScalarType dtype, bool fast = false) {
    return scaled_product(left, right, dtype, fast)
        .narrow(0, 0, size.rows)
        .narrow(1, 0, size.columns)
        .contiguous();
  }

  Fp8Recipe recipe_;
  Fp8WatchPtr watch_;
  Fp8HistoryPtr history_;
};

}  // namespace

LinearProductsPtr fp8_products_of_device(const Fp8Recipe& recipe, Fp8WatchPtr watch,
                                         Fp8HistoryPtr history) {
  return std::make_shared<DeviceProducts>(recipe, std::move(watch), std::move(history));
}

void collect(const std::vector<Fp8WatchPtr>& watches) {
  std::vector<at::Tensor> rows, of_losses;
  for (const auto& watch : watches) {
    if (!watch->on_device.defined()) continue;
    rows.push_back(watch->on_device);
    of_losses.push_back(watch->lost_on_device);
  }
  if (rows.empty()) return;
  const auto all = at::stack(rows).cpu(), all_lost = at::stack(of_losses).cpu();
  const auto lost = all_lost.accessor<int64_t, 3>();
  const auto seen = all.accessor<float, 3>();
  int64_t next = 0;
  for (const auto& watch : watches) {
    if (!watch->on_device.defined()) continue;
    for (int64_t i = 0; i < kFp8Operands; ++i) {
      const auto own = seen[next][i];
      const auto operand = static_cast<size_t>(i);
      auto& amax = watch->amax[operand];
      const float largest = own[kAmax];
      amax = largest > amax || std::isnan(largest) ? largest : amax;
      watch->losses[operand] += {.numbers = 0,
                                 .underflows = lost[next][i][kUnderflows],
                                 .overflows = lost[next][i][kOverflows],
                                 .least_scale = own[kLeastScale]};
    }
    watch->on_device.reset(), watch->lost_on_device.reset();
    ++next;
  }
}

}  // namespace tessera::kernels
