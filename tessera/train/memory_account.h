// Where a rank's memory goes: what the formulas predict, beside what was measured.
#pragma once

#include <vector>

#include "tessera/report/summary.h"
#include "tessera/train/assemble.h"

namespace tessera::train {

/// Bytes of activations that one micro-batch of `tokens` tokens keeps between forward and backward,
/// 0 if no formula is known for the family (docs/activation_checkpointing.md has Llama's).
int64_t predicted_activation_bytes(const config::RunConfig& config, const config::ModelShape& shape,
                                   int64_t tokens);

/// This rank's memory by purpose, at the most during the steps so far. Predictions are those of
/// ZeRO (Rajbhandari et al., SC 2020, section 5) on the unpadded numbers of parameters; buffers of
/// communication and what has no formula are not predicted (-1).
std::vector<report::MemoryPart> memory_account(const Run& run);

}  // namespace tessera::train
