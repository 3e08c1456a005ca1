#include "tessera/text/unicode.h"

#include <fmt/format.h>
#include <utf8proc.h>

#include <algorithm>

#include "tessera/text/pattern.h"

namespace tessera::text {
namespace {

/// Bytes of the longest beginning of a character at `at`, and whether it is a whole one. 0 bytes: no
/// character begins so.
struct Beginning {
  size_t bytes = 0;
  bool whole = false;
};

Beginning begins_character(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t lead = byte(at);
  if (lead < 0x80) return {1, true};
  if (lead < 0xC2 || lead > 0xF4) return {0, false};
  const size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  uint8_t low = 0x80, high = 0xBF;  // of the second byte
  if (lead == 0xE0) low = 0xA0;
  if (lead == 0xED) high = 0x9F;
  if (lead == 0xF0) low = 0x90;
  if (lead == 0xF4) high = 0x8F;
  size_t found = 1;
  while (found < length && at + found < text.size()) {
    const uint8_t next = byte(at + found);
    if (next < low || next > high) return {found, false};
    low = 0x80;
    high = 0xBF;
    ++found;
  }
  return {found, found == length};
}

}  // namespace

Character character_at(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<char32_t>(static_cast<uint8_t>(text[i])); };
  const char32_t lead = byte(at);
  if (lead < 0x80) return {lead, 1};
  if (lead < 0xE0) return {(lead & 0x1F) << 6 | (byte(at + 1) & 0x3F), 2};
  if (lead < 0xF0)
    return {(lead & 0x0F) << 12 | (byte(at + 1) & 0x3F) << 6 | (byte(at + 2) & 0x3F), 3};
  return {(lead & 0x07) << 18 | (byte(at + 1) & 0x3F) << 12 | (byte(at + 2) & 0x3F) << 6 |
              (byte(at + 3) & 0x3F),
          4};
}

void append_utf8(std::string& text, char32_t code) {
  const auto put = [&](char32_t byte) { text.push_back(static_cast<char>(byte)); };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xC0 | code >> 6);
    put(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    put(0xE0 | code >> 12);
    put(0x80 | (code >> 6 & 0x3F));
    put(0x80 | (code & 0x3F));
  } else {
    put(0xF0 | code >> 18);
    put(0x80 | (code >> 12 & 0x3F));
    put(0x80 | (code >> 6 & 0x3F));
    put(0x80 | (code & 0x3F));
  }
}

std::string utf8_of(char32_t code) {
  std::string text;
  append_utf8(text, code);
  return text;
}

bool is_ascii(std::string_view text) {
  uint8_t all = 0;
  for (const char byte : text) all |= static_cast<uint8_t>(byte);
  return all < 0x80;
}

bool is_utf8(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    if (static_cast<uint8_t>(text[at]) < 0x80) {
      ++at;
      continue;
    }
    const auto begins = begins_character(text, at);
    if (!begins.whole) return false;
    at += begins.bytes;
  }
  return true;
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
