// Ranks that do something that may fail on some of them, and all learn whether it did.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tessera/mesh/mesh.h"

namespace tessera::checkpoint {

/// Runs `action` on every rank and returns all results, in order. Where any rank's threw, every
/// rank gets the error of the first such rank: UserError with its line, or SystemError with
/// "rank 2: " before it. `action` itself must not be collective. Collective.
std::vector<std::string> run_on_all(const mesh::Axis& axis,
                                    const std::function<std::string()>& action);

}  // namespace tessera::checkpoint
