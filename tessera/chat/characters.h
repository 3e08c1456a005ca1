// What Python says of the characters of a string, as Jinja's templates see it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/utf8.h"

namespace tessera::chat {

bool is_space(char32_t code);      ///< str.isspace
bool is_cased(char32_t code);      ///< has an upper or a lower form
bool is_alpha(char32_t code);      ///< str.isalpha
bool is_digit(char32_t code);      ///< str.isdecimal
bool is_printable(char32_t code);  ///< str.isprintable
void append_upper(std::string& text, char32_t code);
void append_lower(std::string& text, char32_t code);

/// Where `text` begins and ends without what stands in `characters` at its ends; those of
/// str.isspace if `characters` is null.
struct Stripped {
  size_t begin, end;
};
enum class Ends { both, left, right };
Stripped strip(std::string_view text, Ends ends, const std::string_view* characters = nullptr);

/// repr of a float.
std::string float_text(double number);

}  // namespace tessera::chat
