// Recipes of products in 8-bit floating point: what is rounded to which type, and what shares a
// scale.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "tessera/base/texts.h"

namespace tessera {

/// In what linear layers multiply. A scale is what numbers are multiplied by before they are rounded.
enum class Matmul {
  as_compute,   ///< in the dtype of computation
  fp8_tensor,   ///< a scale for each tensor, from its own largest number
  fp8_delayed,  ///< the same, from the largest of earlier steps (Transformer Engine's recipe)
  fp8_row,      ///< for each row of the left operand and column of the right one, a power of two
  fp8_row_wgrad16,  ///< the same, but the weight's gradient is a product in the dtype of computation
  fp8_block,  ///< for 128 numbers of activations and gradients, 128 x 128 of weights (DeepSeek-V3)
  mxfp8       ///< for 32 numbers, a power of two in 8 bits (OCP Microscaling, 2023)
};
template <>
inline constexpr auto kTexts<Matmul> = std::to_array<std::string_view>({"as_compute", "fp8_tensor",
                                                                        "fp8_delayed", "fp8_row",
                                                                        "fp8_row_wgrad16",
                                                                        "fp8_block", "mxfp8"});

/// Types of fp8_tensor and fp8_delayed: E4M3 for inputs and weights, and for gradients E5M2 or E4M3.
enum class Fp8Format { hybrid, e4m3 };
template <>
inline constexpr auto kTexts<Fp8Format> = std::to_array<std::string_view>({"hybrid", "e4m3"});

/// Which of the history's maxima fp8_delayed makes a scale of.
enum class AmaxOf { most_recent, max };
template <>
inline constexpr auto kTexts<AmaxOf> = std::to_array<std::string_view>({"most_recent", "max"});

/// What whole weights of the linear layers in blocks are kept and gathered in; of a run's gradients,
/// what they are kept in once they are reduced, and what is sent of them.
enum class WeightStorage { as_compute, fp8 };
template <>
inline constexpr auto kTexts<WeightStorage> = std::to_array<std::string_view>({"as_compute",
                                                                               "fp8"});
enum class GradientStorage { as_reduce, fp8 };
template <>
inline constexpr auto kTexts<GradientStorage> = std::to_array<std::string_view>({"as_reduce",
                                                                                 "fp8"});

/// Settings of precision by the names that they are known by (config/precision.h).
enum class PrecisionPreset { none, fp16_amp, te, msamp_o1, msamp_o2, msamp_o3 };
template <>
inline constexpr auto kTexts<PrecisionPreset> =
    std::to_array<std::string_view>({"none", "fp16_amp", "te", "msamp_o1", "msamp_o2", "msamp_o3"});

/// Are products computed by units of 8 bits, or of numbers that were rounded to those and are multiplied in wider
/// types?
enum class Fp8Emulate {
  automatic,  ///< by the units of a GPU that has them; on the CPU, and by recipes that its units lack, emulated
  always,
  never
};
template <>
inline constexpr auto kTexts<Fp8Emulate> = std::to_array<std::string_view>({"auto", "true",
                                                                            "false"});

struct Fp8Recipe {
  Matmul matmul = Matmul::fp8_tensor;
  bool by_device = false;  ///< by its units of 8 bits, else emulated
  Fp8Format format = Fp8Format::hybrid;
  bool weights_are_fp8 =
      false;  ///< already, with a power of two for each: they are not rounded again
  // For fp8_delayed:
  int64_t history = 1024;  ///< steps whose maxima are kept
  AmaxOf amax = AmaxOf::max;
  int64_t margin = 0;    ///< scales are divided by 2^margin
  int64_t interval = 1;  ///< steps between new scales

  bool operator==(const Fp8Recipe&) const = default;
};

/// What the sizes of a layer must be multiples of, so that devices multiply it by this recipe.
constexpr int64_t fp8_multiple(Matmul matmul) { return matmul == Matmul::mxfp8 ? 32 : 16; }

/// What devices get operands as multiples of, with zeros beyond: whole blocks that share a scale.
constexpr int64_t fp8_code_multiple(Matmul matmul) {
  return matmul == Matmul::fp8_block ? 128 : fp8_multiple(matmul);
}

}  // namespace tessera
