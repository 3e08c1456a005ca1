// Which choices of a sequence's tokens their experts have room for.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <optional>

#include "tessera/base/expert_capacity.h"
#include "tessera/kernels/flat.h"

namespace tessera::nn {

/// What the tokens of B sequences, N in all, chose.
struct Choices {
  int64_t num_sequences = 0;  ///< B
  torch::Tensor experts;      ///< int64 [N, K], of a token the best first, none twice
  torch::Tensor scores;       ///< float32 [N, E]
};

/// True for the choices that stay: of each sequence and each expert `capacity` at most, those that `policy`
/// prefers, the earlier of equal ones (scores: equal in bfloat16). bool [N, K], without a graph. `drawn`: what DropPolicy::random draws from,
/// its first_position that of the first token's number for expert 0; E numbers a token.
torch::Tensor kept_choices(const Choices& choices, int64_t capacity, DropPolicy policy,
                           const kernels::DropoutKey& drawn = {});

}  // namespace tessera::nn
