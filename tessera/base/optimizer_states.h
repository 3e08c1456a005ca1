// In which types adamw keeps what it keeps: a choice of the user's, and what follows from it.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "tessera/base/choices.h"

namespace tessera::optim {

/// fp8_fp16: the mean in E4M3 and the mean square in fp16, in blocks that share scales (FP8-LM; Peng et
/// al., 2023).
enum class StateType { fp32, bf16, fp8_fp16 };

}  // namespace tessera::optim

template <>
inline constexpr auto tessera::kTexts<tessera::optim::StateType> =
    std::to_array<std::string_view>({"fp32", "bf16", "fp8+fp16"});

namespace tessera::optim {

/// Small parameters keep states of 32 bits beside fp8_fp16.
constexpr Treatment treatment_of(OptimizerType type, StateType states,
                                 const ParameterFacts& parameter) {
  constexpr int64_t kFewestIn8Bits = 4096;
  if (states != StateType::fp8_fp16) return treatment_of(type, parameter);
  return parameter.num_elements < kFewestIn8Bits ? Treatment::elements : Treatment::blocks;
}

/// Bytes that an optimizer keeps for each number it updates.
constexpr double state_bytes(OptimizerType type, Treatment treatment, double momentum,
                             StateType states) {
  if (treatment == Treatment::blocks && type == OptimizerType::adamw) {
    return 1 + 2 + 2 * 4.0 / static_cast<double>(kStateBlock);
  }
  return state_bytes(type, treatment, momentum,
                     /*number_bytes=*/int64_t{states == StateType::bf16 ? 2 : 4});
}

}  // namespace tessera::optim
