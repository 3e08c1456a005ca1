// Do all ranks start from the same model?
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "tessera/mesh/mesh.h"

namespace tessera::parallel {

/// A unit's name and its parameters by name, in order.
struct CheckedUnit {
  std::string name;
  std::vector<std::pair<std::string, torch::Tensor>> parameters;  ///< or the parts of them here
};

/// Compares the order of units, and names, shapes, dtypes and (`values`, not on the meta device)
/// checksums (XXH3, 64 bits) of all parameters over the ranks of `axis`. Collective. ValueError on
/// every rank: names the first unit or parameter that differs, the ranks, and what differs. Ranks
/// that pass different `slice` are not compared.
void check_same_model(const std::vector<CheckedUnit>& units, bool values, const mesh::Axis& axis,
                      int slice = 0);

}  // namespace tessera::parallel
