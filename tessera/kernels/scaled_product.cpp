#include "tessera/kernels/scaled_product.h"

#include <ATen/ATen.h>
#include <ATen/BlasBackend.h>

namespace tessera::kernels {
namespace {

using at::blas::ScalingType;
using at::blas::SwizzleType;

bool is_of_all(const Fp8Scaling& scaling) { return scaling.rows == 0 && scaling.columns == 0; }
bool is_by_row(const Fp8Scaling& scaling) { return scaling.rows == 1 && scaling.columns == 0; }

/// float32 [R, 1].
at::Tensor factors_of_rows(const ScaledOperand& operand) {
  return operand.factors.expand({operand.codes.size(0), 1}).contiguous();
}

/// [R, K / 128], the rows of a column side by side, whatever the sizes are.
at::Tensor side_by_side_rows(const at::Tensor& factors) {
  return at::empty_strided(factors.sizes(), {1, factors.size(0)}, factors.options()).copy_(factors);
}

/// [K / 128 rounded up to 4, R / 128], which are columns of a matrix with 128 x 128 to a factor.
at::Tensor aligned_columns(const at::Tensor& factors) {
  constexpr int64_t kAligned = 4;  // 16 bytes
  const int64_t depth = factors.size(1);
  const int64_t height = (depth + kAligned - 1) / kAligned * kAligned;
  auto columns = at::empty_strided({height, factors.size(0)}, {1, height}, factors.options());
  columns.fill_(1).narrow(0, 0, depth).copy_(factors.t());
  return columns;
}

/// E8M0 of factors [R, K / 32] in tiles of 128 x 4, within which 32 rows are 16 bytes apart.
at::Tensor tiled(const at::Tensor& factors) {
  constexpr int64_t kHigh = 128, kWide = 4, kRows = 32;
  const int64_t down = (factors.size(0) + kHigh - 1) / kHigh;
  const int64_t across = (factors.size(1) + kWide - 1) / kWide;
  return at::constant_pad_nd(
             factors, {0, across * kWide - factors.size(1), 0, down * kHigh - factors.size(0)}, 1)
      .contiguous()
      .view({down, kHigh / kRows, kRows, across, kWide})
      .permute({0, 3, 2, 1, 4})
      .to(at::kFloat8_e8m0fnu)
      .contiguous()
      .flatten();
}

struct ScaleFactors {
  at::Tensor values;
  ScalingType type;
  SwizzleType order = SwizzleType::NO_SWIZZLE;
};

ScaleFactors factors_of_blocks(const ScaledOperand& operand) {
  const int64_t rows = operand.scaling.rows, columns = operand.scaling.columns;
  if (columns == 32) {
    return {tiled(operand.factors), ScalingType::BlockWise1x32, SwizzleType::SWIZZLE_32_4_4};
  }
  TORCH_INTERNAL_ASSERT(columns == 128 && (rows == 1 || rows == 128));
  if (rows == 1) return {side_by_side_rows(operand.factors), ScalingType::BlockWise1x128};
  return {aligned_columns(operand.factors), ScalingType::BlockWise128x128};
}

at::Tensor product_of_blocks(const ScaledOperand& left, const ScaledOperand& right,
                             at::ScalarType dtype) {
  const auto a = factors_of_blocks(left), b = factors_of_blocks(right);
  const auto number = [](auto choice) { return static_cast<int64_t>(choice); };
  return at::_scaled_mm_v2(left.codes, right.codes.t(), {a.values}, {number(a.type)},
                           {number(a.order)}, {b.values}, {number(b.type)}, {number(b.order)},
                           /*bias=*/std::nullopt, dtype);
}

}  // namespace

ScaledOperand operand_of(const Fp8Codes& codes, const Fp8Scaling& scaling, bool transposed) {
  if (!transposed) return {codes.plain, codes.factors, scaling};
  return {codes.transposed, codes.factors.t(), scaling.transposed()};
}

at::Tensor scaled_product(const ScaledOperand& left, const ScaledOperand& right,
                          at::ScalarType dtype, bool fast) {
  const auto columns = right.codes.t();
  if (is_of_all(left.scaling) && is_of_all(right.scaling)) {
    return at::_scaled_mm(left.codes, columns, left.factors.reshape({1}),
                          right.factors.reshape({1}), /*bias=*/std::nullopt,
                          /*scale_result=*/std::nullopt, dtype, fast);
  }
  if (is_by_row(left.scaling) || is_by_row(right.scaling)) {
    return at::_scaled_mm(left.codes, columns, factors_of_rows(left), factors_of_rows(right).t(),
                          /*bias=*/std::nullopt, /*scale_result=*/std::nullopt, at::kBFloat16, fast)
        .to(dtype);
  }
  return product_of_blocks(left, right, dtype);
}

}  // namespace tessera::kernels
