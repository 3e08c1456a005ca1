#include "tessera/text/unicode.h"

#include <fmt/format.h>
#include <utf8proc.h>

#include <algorithm>

#include "tessera/text/pattern.h"

namespace tessera::text {

bool is_ascii(std::string_view text) {
  uint8_t all = 0;
  for (const char byte : text) all |= static_cast<uint8_t>(byte);
  return all < 0x80;
}

std::string replace_invalid_utf8(std::string_view text) {
  std::string valid;
  valid.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const auto begins = begins_character(text, at);
    if (begins.whole) {
      valid.append(text.substr(at, begins.bytes));
    } else {
      valid.append("\xEF\xBF\xBD");
    }
    at += std::max<size_t>(begins.bytes, 1);
  }
  return valid;
}

std::string in_one_line(std::string_view text) {
  constexpr size_t kMost = 200;
  std::string line;
  for (const char letter : replace_invalid_utf8(text.substr(0, kMost))) {
    const auto byte = static_cast<uint8_t>(letter);
    line += byte < 0x20 || byte == 0x7F ? fmt::format("\\x{:02x}", byte) : std::string(1, letter);
  }
  return text.size() > kMost ? line + ".." : line;
}

size_t incomplete_tail(std::string_view text) {
  for (size_t back = 1; back <= 3 && back <= text.size(); ++back) {
    const size_t at = text.size() - back;
    if ((static_cast<uint8_t>(text[at]) & 0xC0) == 0x80) continue;
    const auto begins = begins_character(text, at);
    return begins.bytes == back && !begins.whole ? back : 0;
  }
  return 0;
}

bool is_white_space(char32_t code) {
  return (code >= 9 && code <= 13) || code == ' ' || code == 0x85 || code == 0xA0 ||
         code == 0x1680 || (code >= 0x2000 && code <= 0x200A) || code == 0x2028 || code == 0x2029 ||
         code == 0x202F || code == 0x205F || code == 0x3000;
}

bool is_numeric(char32_t code) {
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(code));
  return category >= UTF8PROC_CATEGORY_ND && category <= UTF8PROC_CATEGORY_NO;
}

bool is_word(char32_t code) {
  if (code < 0x80) {
    return (code >= 'a' && code <= 'z') || (code >= 'A' && code <= 'Z') ||
           (code >= '0' && code <= '9') || code == '_';
  }
  static const Pattern word("word characters", word_class());
  return word.matches(utf8_of(code));
}

void append_lower(std::u32string& text, char32_t code) {
  if (code == 0x130) {  // the one character whose lower case is two, wherever it stands
    text += U"i\u0307";
  } else {
    text.push_back(static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(code))));
  }
}

}  // namespace tessera::text
