#include "tessera/base/text.h"

#include <fmt/format.h>

#include <cstdint>

namespace tessera {
namespace {

struct Character {
  uint32_t code = 0;
  size_t bytes = 0;  ///< 0: no UTF-8
};

/// The first character of `text`, which is not empty (RFC 3629).
Character first_character(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  const size_t bytes = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || text.size() < bytes) return {};
  uint32_t code = lead & (0x7fU >> bytes);
  for (size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xc0U) != 0x80) return {};
    code = (code << 6) | (byte(i) & 0x3fU);
  }
  constexpr uint32_t kSmallest[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool surrogate = code >= 0xd800 && code <= 0xdfff;
  return code < kSmallest[bytes] || code > 0x10ffff || surrogate ? Character{}
                                                                 : Character{code, bytes};
}

bool has_an_effect(uint32_t code) {
  const bool control = code < 0x20 || (code >= 0x7f && code < 0xa0);
  const bool line = code == 0x2028 || code == 0x2029;
  const bool direction = code == 0x061c || code == 0x200e || code == 0x200f ||
                         (code >= 0x202a && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069);
  return control || line || direction;
}

}  // namespace

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const auto bytes = first_character(text).bytes;
    if (bytes == 0) return false;
    text.remove_prefix(bytes);
  }
  return true;
}

std::string printable(std::string_view text, LineBreaks line_breaks) {
  std::string shown;
  while (!text.empty()) {
    const auto [code, bytes] = first_character(text);
    const bool kept = line_breaks == LineBreaks::kept && (code == '\n' || code == '\t');
    const size_t taken = bytes == 0 ? 1 : bytes;
    if (bytes > 0 && (kept || !has_an_effect(code))) {
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
