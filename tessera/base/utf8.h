// UTF-8 (RFC 3629): shortest forms, no surrogates, up to U+10FFFF.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

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

void append_utf8(std::string& text, char32_t code);
std::string utf8_of(char32_t code);

}  // namespace tessera
