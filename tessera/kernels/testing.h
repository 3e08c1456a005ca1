// Helpers for tests of kernels.
#pragma once

#include <vector>

#include "tessera/kernels/cpu/isa.h"
#include "tessera/kernels/fp8.h"

namespace tessera::kernels {

/// The instruction sets that this processor has.
inline std::vector<Isa> usable_sets() {
  std::vector<Isa> sets;
  for (int i = 0; i <= static_cast<int>(detected_isa()); ++i) sets.push_back(static_cast<Isa>(i));
  return sets;
}

/// How each of the recipes' operands share scales, and some that none has.
inline std::vector<Fp8Scaling> all_fp8_scalings() {
  return {{.type = Fp8Type::e5m2},
          {},
          {.rule = Fp8ScaleRule::power_of_two},
          {.rows = 1, .columns = 0, .rule = Fp8ScaleRule::power_of_two},
          {.rows = 0, .columns = 1, .rule = Fp8ScaleRule::power_of_two},
          {.rows = 1, .columns = 128, .rule = Fp8ScaleRule::block},
          {.rows = 128, .columns = 1, .rule = Fp8ScaleRule::block},
          {.rows = 128, .columns = 128, .rule = Fp8ScaleRule::block},
          {.rows = 1, .columns = 32, .rule = Fp8ScaleRule::e8m0},
          {.type = Fp8Type::e5m2, .rows = 32, .columns = 1, .rule = Fp8ScaleRule::e8m0}};
}

}  // namespace tessera::kernels
