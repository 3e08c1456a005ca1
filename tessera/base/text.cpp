#include "tessera/base/text.h"

#include <fmt/format.h>

#include "tessera/base/utf8.h"

namespace tessera {
namespace {

bool has_an_effect(char32_t code) {
  const bool control = code < 0x20 || (code >= 0x7f && code < 0xa0);
  const bool line = code == 0x2028 || code == 0x2029;
  const bool direction = code == 0x061c || code == 0x200e || code == 0x200f ||
                         (code >= 0x202a && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069);
  return control || line || direction;
}

}  // namespace

std::string printable(std::string_view text, LineBreaks line_breaks) {
  std::string shown;
  while (!text.empty()) {
    const bool whole = begins_character(text, 0).whole;
    const auto [code, taken] = whole ? character_at(text, 0) : Character{};
    const bool kept = line_breaks == LineBreaks::kept && (code == '\n' || code == '\t');
    if (whole && (kept || !has_an_effect(code))) {
      shown += text.substr(0, taken);
    } else {
      for (const char c : text.substr(0, taken)) {
        shown += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
      }
    }
    text.remove_prefix(taken);
  }
  return shown;
}

}  // namespace tessera
