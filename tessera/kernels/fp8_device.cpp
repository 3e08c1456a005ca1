// Products of 8-bit numbers by a device's own units.
#include <ATen/ATen.h>

#include <cmath>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

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

  /// Where codes count what they lose.
  const at::Tensor& lost() const { return lost_; }

  void add_largest(const at::Tensor& amax) {
    auto largest = row_[kAmax];
    at::maximum_out(largest, largest, amax.numel() == 1 ? amax.squeeze() : amax.max());
  }

  void add_scales(const Fp8Codes& codes, bool given) {
    auto least = row_[kLeastScale];
    const auto scales = given ? codes.scales : codes.scales.masked_fill(codes.amax == 0, kInfinity);
    at::minimum_out(least, least, scales.min());  // zeros have one, too, which is not told
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

  at::Tensor input_gradient(const at::Tensor& gradient, const at::Tensor& weight) const override {
    const auto g = gradient_of_both(gradient);
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
    auto result = in_out ? product(x, g, {in, out}, target) : product(g, x, {out, in}, target);
    if (!sink.defined()) return result;
    sink.add_(result);
    return {};
  }

 private:
  struct Size {
    int64_t rows, columns;
  };

  /// Do recipes with blocks have sums of fewer bits? cuBLAS has none of them.
  bool sums_fast() const {
    return recipe_.matmul != Matmul::fp8_block && recipe_.matmul != Matmul::mxfp8;
  }

  bool has_one_scale(Fp8Operand operand) const {
    const auto scaling = scaling_of(recipe_, operand, Sum::along_rows);
    return scaling.rows == 0 && scaling.columns == 0;
  }

  Fp8Codes codes(const at::Tensor& matrix, Fp8Operand operand, Sum sum, bool both) const {
    const bool along_rows = sum == Sum::along_rows;
    std::optional<Seen> seen;  // what the backward reads again has been seen
    if (along_rows || operand == Fp8Operand::gradient)
      seen.emplace(*watch_, operand, matrix.device());
    const bool counts = watch_->counts && along_rows;  // each operand once
    const auto scaling = scaling_of(recipe_, operand, sum);
    const auto scale = given_scale(recipe_, history_, operand);
    auto made = fp8_codes(matrix, scaling,
                          {.plain = along_rows || both,
                           .transposed = !along_rows || both,
                           .multiple = fp8_code_multiple(recipe_.matmul),
                           .scale = scale,
                           .lost = counts ? seen->lost() : at::Tensor()});
    if (seen) seen->add_largest(made.amax);
    if (counts) {
      seen->add_scales(made, scale.has_value());
      watch_->losses[static_cast<size_t>(operand)].numbers += matrix.numel();
    }
    return made;
  }

  ScaledOperand rounded(const at::Tensor& matrix, Fp8Operand operand, Sum sum) const {
    return operand_of(codes(matrix, operand, sum, /*both=*/false),
                      scaling_of(recipe_, operand, sum), sum == Sum::along_columns);
  }

  /// The gradient as the product with the weight takes it; the other order is kept for the next product.
  ScaledOperand gradient_of_both(const at::Tensor& gradient) const {
    constexpr auto kGradient = Fp8Operand::gradient;
    if (!has_one_scale(kGradient)) return rounded(gradient, kGradient, Sum::along_rows);
    const auto scaling = scaling_of(recipe_, kGradient, Sum::along_rows);
    const auto made = codes(gradient, kGradient, Sum::along_rows, /*both=*/true);
    other_order() = {.layer = this, .of = gradient, .codes = operand_of(made, scaling, true)};
    return operand_of(made, scaling, /*transposed=*/false);
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
