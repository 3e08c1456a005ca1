// How far an interrupted `tokenize` was.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tessera/data/text_reader.h"
#include "tessera/data/token_writer.h"

namespace tessera::data {

/// What the tokens depend on, under names that an error can tell. In ASCII.
using TokenizeSettings = std::vector<std::pair<std::string, std::string>>;

struct TokenizeState {
  TextPlace next;          ///< what has not been encoded
  int64_t done_bytes = 0;  ///< of text
  WrittenTokens written;
};

/// OUT.partial.json
std::filesystem::path state_name(const std::filesystem::path& out);

void save_state(const std::filesystem::path& out, const TokenizeSettings& settings,
                const TokenizeState& state);

/// None: there is no such file. UserError: it is of other settings, or broken.
std::optional<TokenizeState> load_state(const std::filesystem::path& out,
                                        const TokenizeSettings& settings, size_t num_files);

}  // namespace tessera::data
