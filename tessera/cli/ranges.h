// What the number behind an option may be.
#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>

namespace tessera::cli {

/// A number in a range, told in few words.
template <typename Number>
CLI::Validator between(Number least, Number most, const std::string& expected) {
  return CLI::Validator(
      [=](const std::string& text) {
        Number value = 0;
        const bool is_in =
            CLI::detail::lexical_cast(text, value) && value >= least && value <= most;
        return is_in ? "" : fmt::format("expected {}, got {}", expected, text);
      },
      "");
}

inline CLI::Validator number(double least, double most, const std::string& expected) {
  return between(least, most, expected);
}

/// Every value that it allows is a double.
inline CLI::Validator whole_number(int64_t least, const std::string& expected) {
  return between(least, int64_t{1} << 53, expected);
}

/// How many ranks: cli::num_ranks takes it.
inline CLI::Validator rank_count() {
  return CLI::Validator(
      [](const std::string& text) {
        return text == "-1" ? "" : whole_number(1, "-1, or at least 1")(text);
      },
      "");
}

}  // namespace tessera::cli
