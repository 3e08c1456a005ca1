// Bytes that a token of a micro-batch costs between forward and backward
// (docs/activation_checkpointing.md), by model family, checkpointing and precision.
#pragma once

#include <cstdint>

#include "tessera/config/model_shape.h"
#include "tessera/config/run_config.h"

namespace tessera::estimate {

/// Of one transformer block, for each token.
struct BlockActivations {
  int64_t kept = 0;     ///< from its forward to its backward
  int64_t working = 0;  ///< beside that, while its backward runs
  int64_t inside = 0;   ///< and at the most, that of its activation function: the widest operator
};
BlockActivations block_activations(const config::RunConfig& config, const config::ModelShape& shape,
                                   bool checkpointed);

/// Is block `index` checkpointed?
bool is_checkpointed(const config::MemorySection& section, int64_t index);

/// Bytes of one activation as wide as the model, for each token.
int64_t stream_bytes(const config::PrecisionSection& precision, const config::ModelShape& shape);

/// All that one micro-batch of `tokens` tokens keeps between forward and backward.
int64_t kept_activation_bytes(const config::RunConfig& config, const config::ModelShape& shape,
                              int64_t tokens);

}  // namespace tessera::estimate
