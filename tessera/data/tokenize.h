// Text into token files.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tessera/base/choices.h"
#include "tessera/data/token_writer.h"

namespace tessera::data {

struct TokenizeOptions {
  std::vector<std::string> inputs;  ///< texts and folders of texts, in this order
  std::filesystem::path out;        ///< appears when complete; its folder must exist
  std::string tokenizer;            ///< as load_tokenizer takes it; "": one token a byte
  /// Stands behind each text; the tokenizer's own unless given, "none": nothing. Without a tokenizer
  /// a byte 0 stands between two.
  std::optional<std::string> end_of_text;
  TokenDtype dtype = TokenDtype::automatic;  ///< automatic: uint16 if each id fits, else uint32
  TokenHeader header = TokenHeader::none;
  std::vector<std::string> extensions;  ///< of files taken from folders; empty: all
  int num_threads = 1;
  size_t part_bytes = size_t{1} << 20;               ///< of text, encoded at a time
  int64_t bytes_between_saves = int64_t{256} << 20;  ///< of text, after which one can go on
  /// Called after each part, with the bytes that an earlier run had done, those done, and all.
  std::function<void(int64_t earlier, int64_t done, int64_t all)> on_progress;
};

struct TokenizeResult {
  int64_t num_files = 0, num_tokens = 0;
  int64_t earlier_bytes = 0;  ///< of text that an interrupted run had done
  TokenType type = TokenType::uint16;
};

/// Writes the tokens of texts, one text behind the other; without a tokenizer the same sequence that
/// TokenSource reads from `inputs` as text. Memory: some 50 MiB and 30 more for each thread, whatever
/// the size. Interrupted, it leaves OUT.partial and OUT.partial.json, with which the same call goes
/// on.
/// UserError: no input, nothing but empty files, an output that is itself an input or whose folder is
/// missing, a type that does not hold all ids, no end of text, too many tokens for a header, half a
/// result of other inputs or options. SystemError: disk full.
TokenizeResult tokenize(const TokenizeOptions& options);

}  // namespace tessera::data
