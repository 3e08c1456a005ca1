// A template cut into tokens, with whitespace control as transformers sets it: trim_blocks,
// lstrip_blocks, no newline at the end.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tessera::chat {

struct Token {
  enum class Kind {
    data,
    block_begin,
    block_end,
    output_begin,
    output_end,
    name,
    string,
    integer,
    real,
    symbol,
    end
  };
  Kind kind;
  std::string text;  ///< of data and strings: what they stand for
  int line;
};

/// Failure, with `line` set to where it is, for what is no template. Ends with a token `end`.
std::vector<Token> tokenize(std::string_view source, int& line);

}  // namespace tessera::chat
