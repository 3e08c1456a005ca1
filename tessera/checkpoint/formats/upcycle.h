// A dense model as a mixture of experts that computes the same.
#pragma once

#include <cstdint>

#include "tessera/checkpoint/formats/training_source.h"

namespace tessera::checkpoint {

struct UpcycleOptions {
  int64_t num_experts = 8;
  int64_t top_k = 2;  ///< of them that a token takes
  int64_t seed = 0;   ///< of the routers' weights
};

/// Each feed-forward becomes `num_experts` copies of itself behind a router of small random weights,
/// whose weights for a token's experts have sum 1: the first output is the dense model's, and what
/// tells experts apart is which tokens they learn from (Komatsuzaki et al., Sparse Upcycling, 2023).
/// A llama or mistral becomes a mixtral, a qwen3 a qwen3_moe. `dense`: parameters alone, under our
/// names. The step begins at 0. UserError: another family, numbers that do not fit.
TrainingSource upcycled(TrainingSource dense, const UpcycleOptions& options);

}  // namespace tessera::checkpoint
