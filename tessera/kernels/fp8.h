// Numbers rounded to 8-bit floating point (Micikevicius et al., FP8 Formats for Deep Learning, 2022),
// and the scales that numbers share.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <limits>
#include <optional>

#include "tessera/kernels/fused_args.h"

namespace tessera::kernels {

/// E4M3: to 448, without infinity (float8_e4m3fn). E5M2: to 57344.
enum class Fp8Type { e4m3, e5m2 };

float largest_of(Fp8Type type);
at::ScalarType dtype_of(Fp8Type type);

/// Codes of x * scale, rounded once to nearest even: a tensor of dtype_of(type). x of any floating
/// dtype; `saturate`: numbers above the largest become that, else what LibTorch's cast makes of them
/// (NaN, or infinity).
at::Tensor to_fp8(const at::Tensor& x, Fp8Type type, float scale = 1, bool saturate = true);
/// The numbers of such codes, times `factor`, in float32 or bfloat16.
at::Tensor from_fp8(const at::Tensor& codes, at::ScalarType dtype, float factor = 1);

/// The scale of numbers whose largest magnitude is `amax`.
float fp8_scale(float amax, Fp8Type type, Fp8ScaleRule rule);

/// Which numbers of a matrix share a scale: rectangles of rows x columns, the last ones smaller; 0:
/// all rows, or all columns.
struct Fp8Scaling {
  Fp8Type type = Fp8Type::e4m3;
  int64_t rows = 0, columns = 0;
  Fp8ScaleRule rule = Fp8ScaleRule::exact;

  /// That of the transposed matrix.
  Fp8Scaling transposed() const { return {type, columns, rows, rule}; }
};

/// What numbers of rectangles are multiplied by before they are rounded, and after it: 1 / scale, NaN where the
/// largest is not finite.
struct Fp8Scales {
  at::Tensor scales, inverses;  ///< float32
};
/// Those of rectangles with the largest magnitudes `amax`, float32 and contiguous on the host. `given`: in the
/// place of their own.
Fp8Scales fp8_scales(const at::Tensor& amax, const Fp8Scaling& scaling, std::optional<float> given);

/// A matrix whose numbers were rounded: they are values * factor. Values are exact in bfloat16: where
/// scales are powers of two the numbers themselves, and factor is 1. Numbers that share a scale with
/// an infinite one have none: they are NaN.
struct Fp8Rounded {
  at::Tensor values;  ///< [R, C], laid out as the matrix
  float factor = 1;
  at::Tensor scales;       ///< float32, one for each rectangle
  float amax = 0;          ///< of all
  int64_t underflows = 0;  ///< numbers that are zero now, and were not; where `counts`
};

struct Fp8RoundOptions {
  std::optional<float> scale =
      std::nullopt;     ///< in the place of its own, for a scaling of the whole
  bool counts = false;  ///< underflows
};

/// `matrix` [R, C] of any floating dtype, contiguous or the transpose of such, with `values` in
/// float32 or bfloat16. On the threads of LibTorch; on devices by its operators.
Fp8Rounded round_to_fp8(const at::Tensor& matrix, const Fp8Scaling& scaling, at::ScalarType values,
                        const Fp8RoundOptions& options = {});
/// The same by LibTorch's operators.
Fp8Rounded round_to_fp8_reference(const at::Tensor& matrix, const Fp8Scaling& scaling,
                                  at::ScalarType values, const Fp8RoundOptions& options = {});

/// What rounding did to numbers. Sums of it are of all of them.
struct Fp8Losses {
  int64_t numbers = 0;
  int64_t underflows = 0;  ///< that are zero now
  int64_t overflows = 0;   ///< that were larger than the type's largest
  float least_scale = std::numeric_limits<float>::infinity();

  Fp8Losses& operator+=(const Fp8Losses& other);
};

/// How many numbers of a matrix, contiguous or the transpose of such, are further from zero than `bound`.
int64_t num_above(const at::Tensor& matrix, float bound);

}  // namespace tessera::kernels
