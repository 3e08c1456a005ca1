// What an option takes, where it is one of several words: for its help and the shell's completion.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace tessera::cli {

/// Says that `option` takes one of `words`; whoever reads its value checks that. CLI::IsMember says it, too.
inline CLI::Option* takes(CLI::Option* option, const std::vector<std::string>& words) {
  return option->type_name(fmt::format("{{{}}}", fmt::join(words, ",")));
}

/// The words that `option` takes, as takes() or CLI::IsMember said it; none: any value.
inline std::vector<std::string> choices_of(const CLI::Option& option) {
  const auto type = option.get_type_name();
  const auto begin = type.find('{'), end = type.rfind('}');
  if (begin == std::string::npos || end == std::string::npos) return {};
  return CLI::detail::split(type.substr(begin + 1, end - begin - 1), ',');
}

}  // namespace tessera::cli
