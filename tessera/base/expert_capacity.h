// How many tokens an expert of a mixture takes, and which ones where more choose it.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

#include "tessera/base/texts.h"

namespace tessera::nn {

/// Which of the tokens of a sequence that chose an expert stay with it, if they are more than it takes.
enum class DropPolicy {
  probs,  ///< those with the highest scores for it, in 8 binary digits (Megatron's; DeepSpeed's of three and more)
  position,  ///< the first of the sequence (Megatron's, DeepSpeed's)
  choice,    ///< those whose first choice it is, then their second, ..; by position among these
             ///< (Lepikhin et al., GShard, ICLR 2021, algorithm 1; DeepSpeed's for two choices)
  random     ///< drawn anew in each step (DeepSpeed's use_rts for one choice)
};

/// Without a factor an expert takes every token that chooses it.
struct ExpertCapacity {
  std::optional<double> factor = {};       ///< in training, of the mean share of an expert
  std::optional<double> eval_factor = {};  ///< in forwards that nothing is learned from
  int64_t least = 4;                       ///< tokens, however small the share
  DropPolicy policy = DropPolicy::probs;
};

/// Tokens of a sequence of `seq_len` that each of `num_experts` takes, if each token chooses `top_k`:
/// max(ceil(seq_len / num_experts * (factor * top_k)), least), in float32 as DeepSpeed computes it, so that a
/// product that is whole but for its rounding is not one more. At `seq_len` or above nothing is dropped: a token
/// chooses an expert once.
int64_t expert_capacity(int64_t seq_len, int64_t num_experts, int64_t top_k, double factor,
                        int64_t least);

}  // namespace tessera::nn

template <>
inline constexpr auto tessera::kTexts<tessera::nn::DropPolicy> =
    std::to_array<std::string_view>({"probs", "position", "choice", "random"});
