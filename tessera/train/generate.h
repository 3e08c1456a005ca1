// A short text from the model, to see that it learned.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tessera/train/assemble.h"

namespace tessera::train {

struct GenerateOptions {
  int64_t num_tokens = 200;
  double temperature = 0.7;  ///< 0: the likeliest token
  int64_t seed = 0;
  std::vector<int64_t> end_tokens = {};                          ///< each ends the text
  std::function<void(int64_t token)> on_token = [](int64_t) {};  ///< told each but one that ends it
};

/// Continues `prompt`, at least one token. False: it ended where the model's output was no number. Same seed, same tokens. Keys and
/// values are kept; pipelines and sequence parallelism compute the text anew for each token.
/// Collective.
bool continue_tokens(Run& run, std::vector<int64_t> prompt, const GenerateOptions& options);

/// Continues `prompt` up to the tokenizer's end of text and returns prompt and continuation. Without a
/// tokenizer (Run::tokenizer) bytes are tokens, and tokens beyond a byte are written as `<id>`. Collective.
std::string generate(Run& run, const std::string& prompt, GenerateOptions options = {});

}  // namespace tessera::train
