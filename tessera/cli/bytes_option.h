// An option that says how much memory there is.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "tessera/base/error.h"

namespace tessera::cli {

/// "80GB", "24 GiB": bytes. UserError with the option's name ("estimate-memory: --device-memory"), also for less than a
/// MB: somebody left out the unit.
inline double bytes_of(const std::string& text, const char* option) {
  constexpr double kLeast = 1e6;
  const CLI::AsSizeValue in_bytes(/*kb_is_1000=*/true);
  auto value = text;
  try {
    const bool is_count = !text.empty() && text[0] >= '0' && text[0] <= '9';
    if (is_count && in_bytes(value).empty() && std::stod(value) >= kLeast) return std::stod(value);
  } catch (const CLI::ValidationError&) {  // a unit that there is not
  }
  user_error("{}: expected bytes with a unit, such as 80GB, got '{}'", option, text);
}

}  // namespace tessera::cli
