#include "tests/support/scaled_mm.h"

#include <ATen/ATen.h>
#include <ATen/BlasBackend.h>

namespace tessera::testing {
namespace {

using at::blas::ScalingType;
using at::blas::SwizzleType;

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }

void expect(bool holds, const std::string& what) { TORCH_CHECK_VALUE(holds, "_scaled_mm: ", what); }

void expect_operands(const at::Tensor& a, const at::Tensor& b,
                     const std::optional<at::Tensor>& bias) {
  expect(a.dim() == 2 && b.dim() == 2 && a.size(1) == b.size(0), "sizes");
  expect(a.stride(1) == 1 && a.stride(0) == a.size(1), "the left operand is row-major");
  expect(b.stride(0) == 1 && b.stride(1) == b.size(0), "the right operand is column-major");
  expect(a.size(1) % 16 == 0 && b.size(1) % 16 == 0, "multiples of 16");
  expect(a.element_size() == 1 && b.element_size() == 1, "types of 8 bits");
  expect(a.scalar_type() != at::kFloat8_e5m2 || b.scalar_type() != at::kFloat8_e5m2,
         "not E5M2 twice");
  expect(!bias.has_value(), "no bias");
}

void expect_strides(const at::Tensor& scale, int64_t rows, int64_t columns, int64_t column_stride) {
  expect(scale.scalar_type() == at::kFloat, "scales in float32");
  expect(scale.size(0) == rows && scale.size(1) == columns, "sizes of scales");
  expect(scale.stride(0) == 1 && scale.stride(1) == column_stride, "strides of scales");
}

at::Tensor spread(const at::Tensor& factors, int64_t high, int64_t wide) {
  return factors.repeat_interleave(high, 0).repeat_interleave(wide, 1);
}

at::Tensor multiplied(const at::Tensor& a, const at::Tensor& b, const at::Tensor& factors_a,
                      const at::Tensor& factors_b, at::ScalarType type) {
  return (a.to(at::kFloat) * factors_a).matmul(b.to(at::kFloat) * factors_b).to(type);
}

void note(const std::string& scales, const at::Tensor& a, const at::Tensor& b, at::ScalarType type,
          bool fast) {
  ScaledMmScope::calls().push_back({scales, a.size(0), a.size(1), b.size(1), type, fast});
}

at::Tensor scaled_mm(const at::Tensor& a, const at::Tensor& b, const at::Tensor& scale_a,
                     const at::Tensor& scale_b, const std::optional<at::Tensor>& bias,
                     const std::optional<at::Tensor>& scale_result,
                     std::optional<at::ScalarType> out, bool fast) {
  expect_operands(a, b, bias);
  expect(scale_a.scalar_type() == at::kFloat && scale_b.scalar_type() == at::kFloat,
         "scales in float32");
  expect(!scale_result.has_value() && out.has_value(), "a result of 16 or 32 bits");
  const bool by_tensor = scale_a.numel() == 1 && scale_b.numel() == 1;
  if (!by_tensor) {
    expect(scale_a.dim() == 2 && scale_a.size(0) == a.size(0) && scale_a.size(1) == 1 &&
               scale_a.is_contiguous(),
           "scales [M, 1]");
    expect(scale_b.dim() == 2 && scale_b.size(0) == 1 && scale_b.size(1) == b.size(1) &&
               scale_b.is_contiguous() && scale_b.stride(1) == 1,
           "scales [1, N]");
    expect(*out == at::kBFloat16, "bfloat16");
    expect(b.scalar_type() == at::kFloat8_e4m3fn, "E4M3");
  }
  note(by_tensor ? "tensor" : "row", a, b, *out, fast);
  return multiplied(a, b, scale_a, scale_b, *out);
}

/// [R, K / 32] of E8M0 in tiles of 128 x 4.
at::Tensor from_tiles(const at::Tensor& scale, int64_t rows, int64_t depth) {
  const int64_t down = ceil_div(rows, 128), across = ceil_div(depth / 32, 4);
  expect(scale.scalar_type() == at::kFloat8_e8m0fnu && scale.is_contiguous() &&
             scale.numel() == down * across * 512,
         "scales of 1x32");
  const auto as_floats = scale.to(at::kFloat).flatten();
  const auto* stored = as_floats.const_data_ptr<float>();
  auto factors = at::empty({rows, depth / 32});
  auto made = factors.accessor<float, 2>();
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < depth / 32; ++c) {  // cuBLAS's documentation
      const int64_t tile = r / 128 * across + c / 4;
      made[r][c] = stored[tile * 512 + (r % 32) * 16 + (r % 128) / 32 * 4 + c % 4];
    }
  }
  return factors;
}

at::Tensor of_32(const at::Tensor& a, const at::Tensor& b, const at::Tensor& scale_a,
                 const at::Tensor& scale_b, at::ScalarType type) {
  const int64_t depth = a.size(1);
  expect(depth % 32 == 0, "multiples of 32");
  note("1x32", a, b, type, false);
  return multiplied(a, b, spread(from_tiles(scale_a, a.size(0), depth), 1, 32),
                    spread(from_tiles(scale_b, b.size(1), depth), 1, 32).t(), type);
}

at::Tensor of_128(const at::Tensor& a, const at::Tensor& b, const at::Tensor& scale_a,
                  const at::Tensor& scale_b, bool square, at::ScalarType type) {
  const int64_t rows = a.size(0), depth = a.size(1), columns = b.size(1);
  const int64_t deep = ceil_div(depth, 128);
  expect_strides(scale_a, rows, deep, rows);
  if (square) {
    expect_strides(scale_b, round_up(deep, 4), ceil_div(columns, 128), round_up(deep, 4));
  } else {
    expect_strides(scale_b, columns, deep, columns);
  }
  const auto of_a = spread(scale_a, 1, 128).narrow(1, 0, depth);
  const auto of_b = square ? spread(scale_b, 128, 128).narrow(0, 0, depth).narrow(1, 0, columns)
                           : spread(scale_b, 1, 128).narrow(1, 0, depth).t();
  note(square ? "1x128 x 128x128" : "1x128 x 1x128", a, b, type, false);
  return multiplied(a, b, of_a, of_b, type);
}

at::Tensor scaled_mm_v2(const at::Tensor& a, const at::Tensor& b, at::TensorList scale_a,
                        at::IntArrayRef recipe_a, at::IntArrayRef swizzle_a, at::TensorList scale_b,
                        at::IntArrayRef recipe_b, at::IntArrayRef swizzle_b,
                        const std::optional<at::Tensor>& bias, std::optional<at::ScalarType> out,
                        at::IntArrayRef contraction_dim, bool fast) {
  expect_operands(a, b, bias);
  expect(a.scalar_type() == at::kFloat8_e4m3fn && b.scalar_type() == at::kFloat8_e4m3fn, "E4M3");
  expect(scale_a.size() == 1 && scale_b.size() == 1 && recipe_a.size() == 1 &&
             recipe_b.size() == 1 && swizzle_a.size() == 1 && swizzle_b.size() == 1 &&
             contraction_dim.empty() && !fast,
         "one scale of each operand");
  const auto is = [&](ScalingType left, ScalingType right, SwizzleType order) {
    return recipe_a[0] == static_cast<int64_t>(left) &&
           recipe_b[0] == static_cast<int64_t>(right) &&
           swizzle_a[0] == static_cast<int64_t>(order) &&
           swizzle_b[0] == static_cast<int64_t>(order);
  };
  constexpr auto kRow = ScalingType::BlockWise1x128;
  if (is(ScalingType::BlockWise1x32, ScalingType::BlockWise1x32, SwizzleType::SWIZZLE_32_4_4)) {
    return of_32(a, b, scale_a[0], scale_b[0], *out);
  }
  const bool square = is(kRow, ScalingType::BlockWise128x128, SwizzleType::NO_SWIZZLE);
  expect(square || is(kRow, kRow, SwizzleType::NO_SWIZZLE), "a recipe that there is");
  return of_128(a, b, scale_a[0], scale_b[0], square, *out);
}

}  // namespace

ScaledMmScope::ScaledMmScope()
    : library_(torch::Library::IMPL, "aten", c10::DispatchKey::CPU, __FILE__, __LINE__) {
  library_.impl("_scaled_mm", scaled_mm);
  library_.impl("_scaled_mm_v2", scaled_mm_v2);
  calls().clear();
}

ScaledMmScope::~ScaledMmScope() = default;

std::vector<ScaledMmCall>& ScaledMmScope::calls() {
  static std::vector<ScaledMmCall> all;
  return all;
}

}  // namespace tessera::testing
