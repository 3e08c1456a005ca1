// Helpers for tests of kernels.
#pragma once

#include <vector>

#include "tessera/kernels/cpu/isa.h"

namespace tessera::kernels {

/// The instruction sets that this processor has.
inline std::vector<Isa> usable_sets() {
  std::vector<Isa> sets;
  for (int i = 0; i <= static_cast<int>(detected_isa()); ++i) sets.push_back(static_cast<Isa>(i));
  return sets;
}

}  // namespace tessera::kernels
