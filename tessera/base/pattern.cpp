#include "tessera/base/pattern.h"

namespace tessera {

bool matches(std::string_view pattern, std::string_view text) {
  const auto star = pattern.find('*');
  if (star == std::string_view::npos) return pattern == text;
  if (!text.starts_with(pattern.substr(0, star))) return false;
  const auto rest = pattern.substr(star + 1);
  for (size_t at = star; at <= text.size(); ++at) {
    if (matches(rest, text.substr(at))) return true;
  }
  return false;
}

}  // namespace tessera
