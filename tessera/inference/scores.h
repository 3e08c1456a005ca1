// How likely texts are to a model.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "tessera/models/language_model.h"

namespace tessera::inference {

/// Tokens of which each is predicted from those before it.
struct Passage {
  std::vector<int64_t> tokens;  ///< two or more; the first is never scored
  std::vector<bool> scored;     ///< of each token
};

struct Score {
  double log_probability = 0;  ///< of the scored tokens together, in nats
  int64_t num_tokens = 0;      ///< scored
};

/// Scores passages, several in a row (a forward of some 2,048 tokens) but as if each were alone. Logits never exist
/// as a whole. Collective where ranks divide the model: the same on every rank. `on_tokens` hears how many of all tokens are
/// done.
std::vector<Score> scores_of(
    models::LanguageModel& model, std::span<const Passage> passages,
    const std::function<void(int64_t done, int64_t total)>& on_tokens = {});

/// Passages of at most `seq_len` + 1 tokens that score each of `tokens` but the first (and but those that are not
/// `scored`) once: a window moves on by `stride`, so each but those of the first has at least seq_len - stride tokens
/// before it.
std::vector<Passage> windows(std::span<const int64_t> tokens, const std::vector<bool>& scored,
                             int64_t seq_len, int64_t stride);

}  // namespace tessera::inference
