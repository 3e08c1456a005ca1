// Do all ranks start from the same parameters?
#pragma once

#include <vector>

#include "tessera/mesh/mesh.h"
#include "tessera/parallel/data/flat_buffer.h"

namespace tessera::parallel {

/// Compares names, shapes, dtypes and checksums (XXH3, 64 bits) of all parameters with rank 0's.
/// Collective. ValueError on every rank: names the first parameter that differs, the rank, and what
/// differs.
void check_same_parameters(const std::vector<FlatBuffer>& buffers, const mesh::Axis& axis);

}  // namespace tessera::parallel
