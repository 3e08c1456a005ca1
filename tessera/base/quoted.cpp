#include "tessera/base/quoted.h"

#include <fmt/format.h>

namespace tessera {

std::string escape_controls(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '\n') {
      out += "\\n";
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      out += fmt::format("\\x{:02x}", static_cast<unsigned>(c));
    } else {
      out += c;
    }
  }
  return out;
}

std::string quoted(const std::string& text) {
  constexpr size_t kLongest = 60;
  return fmt::format("'{}{}'", escape_controls(text.substr(0, kLongest)),
                     text.size() > kLongest ? "..." : "");
}

}  // namespace tessera
