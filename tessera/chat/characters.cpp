#include "tessera/chat/characters.h"

#include <fmt/format.h>
#include <utf8proc.h>

#include <charconv>
#include <cmath>

namespace tessera::chat {

bool is_space(char32_t code) {
  return (code >= 0x09 && code <= 0x0D) || (code >= 0x1C && code <= 0x20) || code == 0x85 ||
         code == 0xA0 || code == 0x1680 || (code >= 0x2000 && code <= 0x200A) || code == 0x2028 ||
         code == 0x2029 || code == 0x202F || code == 0x205F || code == 0x3000;
}

namespace {

utf8proc_category_t category_of(char32_t code) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(code));
}

}  // namespace

bool is_cased(char32_t code) {
  const auto signed_code = static_cast<utf8proc_int32_t>(code);
  return utf8proc_islower(signed_code) != 0 || utf8proc_isupper(signed_code) != 0 ||
         category_of(code) == UTF8PROC_CATEGORY_LT;
}

bool is_alpha(char32_t code) {
  const auto category = category_of(code);
  return category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
}

bool is_digit(char32_t code) { return category_of(code) == UTF8PROC_CATEGORY_ND; }

bool is_printable(char32_t code) {
  if (code == ' ') return true;
  const auto category = category_of(code);
  return category != UTF8PROC_CATEGORY_CN && category < UTF8PROC_CATEGORY_ZS;
}

void append_upper(std::string& text, char32_t code) {
  if (code == 0xDF) {
    text += "SS";
  } else {
    append_utf8(text, static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(code))));
  }
}

void append_lower(std::string& text, char32_t code) {
  append_utf8(text, static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(code))));
  if (code == 0x130) append_utf8(text, 0x307);
}

Stripped strip(std::string_view text, Ends ends, const std::string_view* characters) {
  const auto goes = [&](size_t at) {
    const auto character = character_at(text, at);
    return characters == nullptr
               ? is_space(character.code)
               : characters->find(text.substr(at, character.bytes)) != std::string_view::npos;
  };
  size_t begin = 0, end = text.size();
  if (ends != Ends::right) {
    while (begin < end && goes(begin)) begin += character_at(text, begin).bytes;
  }
  while (ends != Ends::left && end > begin) {
    size_t last = end - 1;
    while ((static_cast<uint8_t>(text[last]) & 0xC0) == 0x80) --last;
    if (!goes(last)) break;
    end = last;
  }
  return {begin, end};
}

std::string float_text(double number) {
  if (std::isnan(number)) return "nan";
  if (std::isinf(number)) return number < 0 ? "-inf" : "inf";
  char buffer[64];
  const double size = std::fabs(number);
  const bool scientific = size != 0 && (size < 1e-4 || size >= 1e16);
  const auto format = scientific ? std::chars_format::scientific : std::chars_format::fixed;
  const auto result = std::to_chars(buffer, buffer + sizeof(buffer), number, format);
  std::string text(buffer, result.ptr);
  if (!scientific && text.find('.') == std::string::npos) text += ".0";
  return text;
}

}  // namespace tessera::chat
