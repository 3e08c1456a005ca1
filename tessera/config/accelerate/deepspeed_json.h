// A JSON file as a list of its values, each with the line of its key.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace tessera::config::accelerate {

struct JsonLine {
  std::string key;               ///< dotted: "zero_optimization.stage"
  nlohmann::ordered_json value;  ///< scalar, list, null, or an object without keys
  int line = 0;                  ///< from 1
};

/// The values of a file, in its order. UserError with file, line and column: no JSON, no object, a
/// key that stands twice in its object.
std::vector<JsonLine> read_json_lines(const std::filesystem::path& file);

}  // namespace tessera::config::accelerate
