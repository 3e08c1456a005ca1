// The header of a safetensors file: parsing with every rule of the format, and writing.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/checkpoint/tensor_source.h"

namespace tessera::checkpoint {

inline constexpr std::string_view kMetadataKey = "__metadata__";

using Metadata = std::map<std::string, std::string>;

struct StoredTensor {
  TensorInfo info;
  int64_t offset = 0;  ///< of its first byte in the file
};

struct SafetensorsHeader {
  std::vector<std::pair<std::string, StoredTensor>> tensors;  ///< in the order of their bytes
  Metadata metadata;
};

/// The header of a whole file's bytes; UserError with `path` at the first broken rule.
SafetensorsHeader parse_safetensors_header(const std::filesystem::path& path,
                                           std::string_view file);

/// The first bytes of a file that holds `tensors` one after the other: length and header, padded
/// with spaces to a multiple of `alignment`, which the first tensor's bytes follow. UserError with
/// `path`: the name "__metadata__", or a name twice.
std::string format_safetensors_header(
    const std::filesystem::path& path,
    const std::vector<std::pair<std::string, TensorInfo>>& tensors, const Metadata& metadata = {},
    int64_t alignment = 8);

}  // namespace tessera::checkpoint
