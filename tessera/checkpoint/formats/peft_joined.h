// Adapters of several modules as one of all their ranks: their A one below the other, their B block by block.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "tessera/checkpoint/formats/floats_of.h"
#include "tessera/models/adapter.h"

namespace tessera::checkpoint {

/// alpha of an adapter of `rank` that is scaled as `module`'s.
inline double joined_alpha(const models::AdaptedModule& module, int64_t rank, bool rslora) {
  const double ratio = static_cast<double>(rank) / static_cast<double>(module.rank);
  return module.alpha * (rslora ? std::sqrt(ratio) : ratio);
}

/// Puts the module's B into `values`, its number of `row` and `k` where index(row, k) says. All have the
/// scale `scale`; how its own differs goes into its numbers.
void put_b(const TensorSource& trained, const models::AdaptedModule& module, double scale,
           const auto& index, std::vector<float>& values) {
  const auto part = floats_of(trained, module.path + ".lora_B");
  for (int64_t row = 0; row < module.outputs; ++row) {
    for (int64_t k = 0; k < module.rank; ++k) {
      const float value = part[static_cast<size_t>(row * module.rank + k)];
      values[index(row, k)] =
          module.scale == scale ? value : static_cast<float>(value * module.scale / scale);
    }
  }
}

}  // namespace tessera::checkpoint
