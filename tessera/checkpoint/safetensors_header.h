// The header of a safetensors file: parsing with every rule of the format, and writing.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/checkpoint/safetensors.h"

namespace tessera::checkpoint {

inline constexpr std::string_view kMetadataKey = "__metadata__";

struct SafetensorsHeader {
  std::vector<std::pair<std::string, TensorInfo>> tensors;  ///< in the order of their bytes
  Metadata metadata;
};

/// The header of a whole file's bytes; UserError with `path` at the first broken rule.
SafetensorsHeader parse_safetensors_header(const std::filesystem::path& path,
                                           std::string_view file);

/// JSON in which no object repeats a key; UserError with `path` otherwise, or if it is no JSON in
/// UTF-8.
nlohmann::json parse_strict_json(const std::filesystem::path& path, std::string_view text);

/// "F32", ..; UserError if the format has no such dtype.
std::string_view safetensors_dtype(c10::ScalarType dtype);

}  // namespace tessera::checkpoint
