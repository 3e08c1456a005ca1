// What filters and methods do with strings, each byte keeping its source.
#pragma once

#include <vector>

#include "tessera/chat/builtins.h"
#include "tessera/chat/characters.h"

namespace tessera::chat {

/// Without `characters` (a string; undefined or none: blanks) at its ends.
Text strip_text(const Text& text, Ends ends, const Value& characters);

/// The parts between separators, or between runs of blanks; at most `most` cuts.
std::vector<Text> split_at(const Text& text, std::string_view separator, size_t most);
std::vector<Text> split_at_blanks(const Text& text, size_t most);
std::vector<Text> lines_of(const Text& text);  ///< str.splitlines

Text replaced(Interpreter& interpreter, const Text& text, const Text& old, const Text& replacement,
              size_t most);
Text joined(Interpreter& interpreter, const std::vector<Value>& items, const Text& separator);

}  // namespace tessera::chat
