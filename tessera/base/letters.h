// Letters of ASCII.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>

namespace tessera {

inline std::string lower_case(std::string_view text) {
  std::string lower(text);
  std::ranges::for_each(
      lower, [](char& c) { c = 'A' <= c && c <= 'Z' ? static_cast<char>(c + ('a' - 'A')) : c; });
  return lower;
}

inline std::string upper_case(std::string_view text) {
  std::string upper(text);
  std::ranges::for_each(
      upper, [](char& c) { c = 'a' <= c && c <= 'z' ? static_cast<char>(c - ('a' - 'A')) : c; });
  return upper;
}

}  // namespace tessera
