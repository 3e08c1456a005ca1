// Which token comes next: a function of logits, seed and position, so that ranks agree without a
// message.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace tessera::generate {

/// What each does is as transformers' logits processors have it, in this order.
struct SamplingOptions {
  /// Tokens that are in the text: their positive logits are divided by it, others multiplied; > 0.
  double repetition_penalty = 1;
  double temperature =
      1;              ///< logits are divided by it; 0: the largest is taken, the first of equals
  int64_t top_k = 0;  ///< the k largest are kept, and those equal to the last; 0: all
  double top_p = 1;   ///< the fewest largest whose probabilities reach p; (0, 1]
  double min_p = 0;   ///< those of at least p times the largest probability; [0, 1]
  uint64_t seed = 0;
};

/// Probabilities after all of the above; temperature 0 as 1.
std::vector<double> probabilities(std::span<const float> logits, std::span<const int64_t> tokens,
                                  const SamplingOptions& options);

/// The token that follows `tokens`. UserError: logits that are no numbers.
int64_t sample(std::span<const float> logits, std::span<const int64_t> tokens,
               const SamplingOptions& options);

}  // namespace tessera::generate
