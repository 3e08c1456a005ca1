#include "tessera/config/accelerate/shown_value.h"

#include <algorithm>
#include <cctype>
#include <string_view>

#include "tessera/base/letters.h"

namespace tessera::config::accelerate {
namespace {

constexpr std::string_view kHidden = "(hidden)";

bool is_of_name(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

/// Does a word of the name, "api_key" having two, end as secrets do?
bool is_secret(std::string_view name) {
  const auto upper = upper_case(name);
  for (const std::string_view end : {"TOKEN", "SECRET", "PASSWORD", "KEY"}) {
    for (auto at = upper.find(end); at != std::string::npos; at = upper.find(end, at + 1)) {
      const auto after = at + end.size();
      if (after == upper.size() || std::isalnum(static_cast<unsigned char>(upper[after])) == 0) {
        return true;
      }
    }
  }
  return false;
}

/// Hides the value in "NAME=value" within a text, as in a list of variables or a command.
void hide_assignments(std::string& text) {
  for (auto at = text.find('='); at != std::string::npos; at = text.find('=', at + 1)) {
    auto begin = at;
    while (begin > 0 && is_of_name(text[begin - 1])) --begin;
    if (!is_secret(std::string_view(text).substr(begin, at - begin))) continue;
    const auto end = std::min(text.find_first_of(" ,;]", at + 1), text.size());
    text.replace(at + 1, end - at - 1, kHidden);
  }
}

/// Hides user and password in "scheme://user:password@host".
void hide_users(std::string& text) {
  constexpr std::string_view kMark = "://";
  for (auto at = text.find(kMark); at != std::string::npos; at = text.find(kMark, at + 1)) {
    const auto begin = at + kMark.size();
    const auto end = std::min(text.find_first_of("/?# ,;]", begin), text.size());
    const auto sign = text.substr(begin, end - begin).rfind('@');
    if (sign != std::string::npos) text.replace(begin, sign, kHidden);
  }
}

}  // namespace

std::string shown_value(const std::string& name, std::string value) {
  if (is_secret(name) && !value.empty()) return std::string(kHidden);
  hide_assignments(value);
  hide_users(value);
  return value;
}

}  // namespace tessera::config::accelerate
