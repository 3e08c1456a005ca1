// Text into token files.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "tessera/data/token_file.h"

namespace tessera::data {

struct TokenizeOptions {
  std::vector<std::string> inputs;     ///< texts and folders of texts, in this order
  std::filesystem::path out;           ///< appears when complete; its folder must exist
  TokenType type = TokenType::uint16;  ///< uint16 or uint32
  TokenHeader header = TokenHeader::none;
  std::vector<std::string> extensions;  ///< of files taken from folders; empty: all
};

struct TokenizeResult {
  int64_t num_files = 0, num_tokens = 0;
};

/// Writes one token a byte: the same sequence that TokenSource reads from `inputs` as text.
/// Memory: a MiB whatever the size. UserError: no input, nothing but empty files, an output that is
/// itself an input or whose folder is missing, too many tokens for an llm.c header. SystemError:
/// disk full.
TokenizeResult tokenize_bytes(const TokenizeOptions& options);

}  // namespace tessera::data
