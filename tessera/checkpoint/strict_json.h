// JSON as files of others must be read.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string_view>

namespace tessera::checkpoint {

/// JSON in which no object repeats a key; UserError with `path` otherwise, or if it is no JSON in
/// UTF-8, or nested more than 64 deep.
nlohmann::json parse_strict_json(const std::filesystem::path& path, std::string_view text);

}  // namespace tessera::checkpoint
