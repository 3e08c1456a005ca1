// What a run with something on drives says before its first step.
#pragma once

#include <string>
#include <vector>

#include "tessera/train/assemble.h"

namespace tessera::train {

/// What lies where, what a step moves, how fast the drives and matrix products are now, what that
/// means for a step, and how it wears the drives. None if nothing is on drives. Measures for a second or
/// two, on all ranks at the same time. Collective. SystemError: a drive.
std::vector<std::string> preflight(const Run& run);

}  // namespace tessera::train
