// UTF-8 (RFC 3629): shortest forms, no surrogates, up to U+10FFFF.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

/// Bytes of the longest beginning of a character at `at`, and whether it is a whole one. 0 bytes: no
/// character begins so.
struct Beginning {
  size_t bytes = 0;
  bool whole = false;
};
Beginning begins_character(std::string_view text, size_t at);

bool is_utf8(std::string_view text);

/// The character at `at` of valid UTF-8, and its bytes.
struct Character {
  char32_t code = 0;
  uint32_t bytes = 1;
};
Character character_at(std::string_view text, size_t at);

/// How many characters valid UTF-8 has, and where each begins (and where the last ends).
size_t num_characters(std::string_view text);
std::vector<size_t> character_offsets(std::string_view text);

void append_utf8(std::string& text, char32_t code);
std::string utf8_of(char32_t code);

}  // namespace tessera
