// What trials learn from: a stream of tokens, conversations with a tokenizer and a chat template, or pairs of answers.
#pragma once

#include <filesystem>

#include "tests/combinations/values.h"

namespace tessera::combinations {

/// Tokens below this stand in the data; every vocabulary is at least as large.
inline constexpr int64_t kLeastVocabulary = 260;

/// Writes each kind into `folder`, as two files.
void write_data(const std::filesystem::path& folder);

/// Sets the keys that name them, of the kind that data.format and preference.loss say.
void name_data(const std::filesystem::path& folder, Settings& job);

}  // namespace tessera::combinations
