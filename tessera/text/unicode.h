// What Unicode says of characters, from utf8proc's tables.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "tessera/base/utf8.h"

namespace tessera::text {

bool is_ascii(std::string_view text);
/// `text`, in which each longest beginning of a character that does not go on, and each byte that
/// begins none, is U+FFFD (the practice that the Unicode standard recommends, 3.9).
std::string replace_invalid_utf8(std::string_view text);

/// `text` for an error message: in one line of at most some 200 bytes, controls as `\xNN`.
std::string in_one_line(std::string_view text);

/// How many bytes at the end of `text` begin a character that may still be completed: 0 to 3.
size_t incomplete_tail(std::string_view text);

bool is_white_space(char32_t code);  ///< the property White_Space
bool is_numeric(char32_t code);      ///< the categories N*
/// Letters and what else is alphabetic, marks, decimal digits, connectors, joiners: UTS 18's `\w`.
bool is_word(char32_t code);
/// Appends the lower case of one character; U+0130 becomes two.
void append_lower(std::u32string& text, char32_t code);

}  // namespace tessera::text
