// A short text from the model, to see that it learned.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "tessera/train/assemble.h"

namespace tessera::train {

struct GenerateOptions {
  int64_t num_tokens = 200;
  double temperature = 0.7;
  int64_t seed = 0;
  std::function<void(int64_t num_done)> on_token = [](int64_t) {};  ///< after each
};

/// Continues `prompt` up to the tokenizer's end of text and returns prompt and continuation. Without a
/// tokenizer (Run::tokenizer) bytes are tokens, and tokens beyond a byte are written as <id>. Same seed, same text. Keys and
/// values are kept; pipelines and sequence parallelism compute the text anew for each token.
/// Collective.
std::string generate(Run& run, const std::string& prompt, const GenerateOptions& options = {});

}  // namespace tessera::train
