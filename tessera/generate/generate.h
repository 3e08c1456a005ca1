// Goes on with a text, token by token.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tessera/generate/cached_model.h"
#include "tessera/generate/sampling.h"

namespace tessera::generate {

struct GenerateOptions {
  int64_t max_new_tokens = 256;
  SamplingOptions sampling;
  std::vector<int64_t> end_tokens;  ///< each ends the text
  /// Told each new token but one that ends the text; false: it was the last.
  std::function<bool(int64_t token)> on_token = [](int64_t) { return true; };
};

/// The new tokens behind `tokens`, with the one that ended them. Collective where `next_logits` is.
std::vector<int64_t> generate(const NextLogits& next_logits, std::vector<int64_t> tokens,
                              const GenerateOptions& options);

/// Finds words in a text that comes piece by piece.
class StopWords {
 public:
  explicit StopWords(std::vector<std::string> words);

  /// What of the text can be shown now: not a stop word, nor what may become one.
  std::string push(const std::string& piece);
  std::string finish();  ///< what waited for a stop word that did not come
  bool found() const { return found_; }

 private:
  std::vector<std::string> words_;
  std::string waiting_;
  bool found_ = false;
};

}  // namespace tessera::generate
