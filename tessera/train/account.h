// Where a rank's memory goes: what the formulas predict, beside what was measured.
#pragma once

#include <vector>

#include "tessera/report/summary.h"
#include "tessera/train/assemble.h"

namespace tessera::train {

/// This rank's memory by purpose, each at the most during the steps so far; "at once": all tensors
/// together, on a CPU. Predictions are those of tessera/estimate/ (docs/estimates.md); buffers of
/// communication are not predicted (-1).
std::vector<report::MemoryPart> memory_account(const Run& run);

}  // namespace tessera::train
