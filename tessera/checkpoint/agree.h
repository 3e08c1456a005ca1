// Ranks that do something that may fail on some of them, and all learn whether it did.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tessera/mesh/mesh.h"

namespace tessera::checkpoint {

/// Runs `action` on every rank and returns all results, in order. Where any rank's threw UserError
/// or SystemError, every rank gets that of the first such rank, the same one line (SystemError: with "rank 2: "
/// before it). Collective.
std::vector<std::string> agree(const mesh::Axis& axis, const std::function<std::string()>& action);

}  // namespace tessera::checkpoint
