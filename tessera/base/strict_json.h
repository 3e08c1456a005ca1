// JSON as files of others must be read.
#pragma once

#include <cstddef>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string_view>

#include "tessera/base/error.h"

namespace tessera {

/// The text is no JSON.
class JsonSyntaxError : public UserError {
 public:
  JsonSyntaxError(const std::filesystem::path& path, size_t byte)
      : UserError(fmt::format("{}: expected JSON in UTF-8, got an error at byte {} of it",
                              path.string(), byte)),
        byte_(byte) {}

  size_t byte() const { return byte_; }  ///< where it stops being JSON

 private:
  size_t byte_;
};

/// How deep the JSON of a file may be nested: what walks it keeps a stack.
inline constexpr int kMaxJsonDepth = 64;

/// JSON in which no object repeats a key; UserError with `path` otherwise, or if it is no JSON in
/// UTF-8, has a number that no double holds, or is nested more than `max_depth` deep. Cost: that of
/// the text's length, times the logarithm of an object's entries.
nlohmann::json parse_strict_json(const std::filesystem::path& path, std::string_view text,
                                 int max_depth = kMaxJsonDepth);

}  // namespace tessera
