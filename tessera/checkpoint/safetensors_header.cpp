#include "tessera/checkpoint/safetensors_header.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include "tessera/base/error.h"
#include "tessera/base/strict_json.h"

namespace tessera::checkpoint {
namespace {

using nlohmann::json;

static_assert(std::endian::native == std::endian::little,
              "safetensors are little endian and read in place");

constexpr uint64_t kMaxHeaderBytes = 100'000'000;
constexpr size_t kLengthBytes = 8;

/// A name as JSON: in quotes, control characters escaped, so that an error stays one line.
std::string in_quotes(std::string_view name) { return json(name).dump(); }

/// Everything that is wrong with one tensor's entry is said with the file and the name in front.
struct Entry {
  std::string where;
  const json& value;

  template <typename... Args>
  [[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) const {
    user_error("{}: {}", where, fmt::format(format, std::forward<Args>(args)...));
  }
};

/// A JSON number that is a whole number from 0 to 2^63 - 1.
int64_t whole_number(const Entry& entry, const json& number, std::string_view what) {
  if (!number.is_number_unsigned() ||
      number.get<uint64_t>() > std::numeric_limits<int64_t>::max()) {
    entry.refuse("{}: expected a whole number of 0 or more, got {}", what, number.dump());
  }
  return number.get<int64_t>();
}

DType parse_dtype(const Entry& entry) {
  const auto& dtype = entry.value.at("dtype");
  if (!dtype.is_string()) entry.refuse("dtype: expected text, got {}", dtype.dump());
  const auto known = dtype_named(dtype.get_ref<const std::string&>());
  if (!known) entry.refuse("unknown dtype {}", dtype.dump());
  return *known;
}

std::vector<int64_t> parse_shape(const Entry& entry) {
  const auto& shape = entry.value.at("shape");
  if (!shape.is_array()) entry.refuse("shape: expected a list, got {}", shape.type_name());
  std::vector<int64_t> sizes;
  for (const auto& size : shape) sizes.push_back(whole_number(entry, size, "shape"));
  return sizes;
}

/// Product of dtype size and shape. A zero does not excuse an overflow before or after it.
int64_t checked_bytes(const Entry& entry, DType dtype, const std::vector<int64_t>& shape) {
  int64_t bytes = dtype_bytes(dtype);
  for (const int64_t size : shape) {
    if (__builtin_mul_overflow(bytes, std::max<int64_t>(size, 1), &bytes)) {
      entry.refuse("shape [{}] overflows", fmt::join(shape, ", "));
    }
  }
  return std::ranges::find(shape, 0) == shape.end() ? bytes : 0;
}

/// Offsets in the returned info count from the end of the header.
StoredTensor parse_entry(const Entry& entry) {
  if (!entry.value.is_object()) entry.refuse("expected an object, got {}", entry.value.type_name());
  for (const auto* key : {"dtype", "shape", "data_offsets"}) {
    if (!entry.value.contains(key)) entry.refuse("{} is missing", key);
  }
  if (entry.value.size() != 3)
    entry.refuse("expected dtype, shape and data_offsets alone, got other keys");
  StoredTensor stored{.info = {.dtype = parse_dtype(entry), .shape = parse_shape(entry)}};
  const auto& offsets = entry.value.at("data_offsets");
  if (!offsets.is_array() || offsets.size() != 2)
    entry.refuse("data_offsets: expected [begin, end]");
  const int64_t begin = whole_number(entry, offsets[0], "data_offsets");
  const int64_t end = whole_number(entry, offsets[1], "data_offsets");
  if (begin > end) entry.refuse("data_offsets: expected begin <= end, got [{}, {}]", begin, end);
  const int64_t expected = checked_bytes(entry, stored.info.dtype, stored.info.shape);
  if (end - begin != expected) {
    entry.refuse("dtype and shape take {} bytes, but data_offsets [{}, {}] hold {}", expected,
                 begin, end, end - begin);
  }
  stored.offset = begin;
  return stored;
}

Metadata parse_metadata(const std::filesystem::path& path, const json& value) {
  Metadata metadata;
  if (!value.is_object()) {
    user_error("{}: __metadata__: expected an object of texts, got {}", path.string(),
               value.type_name());
  }
  for (const auto& [key, text] : value.items()) {
    if (!text.is_string()) {
      user_error("{}: __metadata__: {}: expected text, got {}", path.string(), in_quotes(key),
                 text.type_name());
    }
    metadata[key] = text.get<std::string>();
  }
  return metadata;
}

/// The JSON part, after the rules on its length.
std::string_view header_text(const std::filesystem::path& path, std::string_view file) {
  if (file.size() < kLengthBytes) {
    user_error("{}: truncated: expected a safetensors file of at least 8 bytes, got {}",
               path.string(), file.size());
  }
  uint64_t length = 0;
  std::memcpy(&length, file.data(), kLengthBytes);
  if (length > kMaxHeaderBytes) {
    user_error("{}: no safetensors file: expected a header of at most {} bytes, got {}",
               path.string(), kMaxHeaderBytes, length);
  }
  if (length > file.size() - kLengthBytes) {
    user_error("{}: truncated: expected a header of {} bytes, got a file of {}", path.string(),
               length, file.size());
  }
  const auto text = file.substr(kLengthBytes, length);
  if (!text.starts_with('{'))
    user_error("{}: no safetensors file: its header does not begin with '{{'", path.string());
  return text;
}

/// The tensors tile the bytes after the header; makes their offsets count from the begin of the
/// file.
void check_tiling(const std::filesystem::path& path, SafetensorsHeader& header, size_t file_bytes,
                  size_t data_begin) {
  std::ranges::sort(header.tensors, {}, [](const auto& tensor) {
    return std::tuple(tensor.second.offset, tensor.second.info.num_bytes(), tensor.first);
  });
  int64_t end = 0;
  for (auto& [name, stored] : header.tensors) {
    if (stored.offset != end) {
      user_error(
          "{}: tensor {}: expected its bytes to begin at {}, where the one before ends, got {}: {}",
          path.string(), in_quotes(name), end, stored.offset,
          stored.offset < end ? "they overlap" : "a hole");
    }
    end += stored.info.num_bytes();
    stored.offset += static_cast<int64_t>(data_begin);
  }
  const auto available = static_cast<int64_t>(file_bytes - data_begin);
  if (end != available) {
    user_error("{}: {}: expected {} bytes of tensors after the header, got {}", path.string(),
               end > available ? "truncated" : "too long", end, available);
  }
}

}  // namespace

SafetensorsHeader parse_safetensors_header(const std::filesystem::path& path,
                                           std::string_view file) {
  const auto text = header_text(path, file);
  const json root = parse_strict_json(path, text);
  SafetensorsHeader header;
  for (const auto& [name, value] : root.items()) {
    if (name == kMetadataKey) {
      header.metadata = parse_metadata(path, value);
    } else {
      const Entry entry{fmt::format("{}: tensor {}", path.string(), in_quotes(name)), value};
      header.tensors.emplace_back(name, parse_entry(entry));
    }
  }
  check_tiling(path, header, file.size(), kLengthBytes + text.size());
  return header;
}

std::string format_safetensors_header(
    const std::filesystem::path& path,
    const std::vector<std::pair<std::string, TensorInfo>>& tensors, const Metadata& metadata,
    int64_t alignment) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header[std::string(kMetadataKey)] = metadata;
  std::set<std::string_view> names;
  int64_t offset = 0;
  for (const auto& [name, info] : tensors) {
    if (name == kMetadataKey || !names.insert(name).second) {
      user_error("{}: expected every tensor under a name of its own, and none named {}, got {}",
                 path.string(), kMetadataKey, in_quotes(name));
    }
    const int64_t num_bytes = info.num_bytes();
    // Appended without a search: a linear one is what operator[] of an ordered object does.
    header.get_ref<nlohmann::ordered_json::object_t&>().emplace_back(
        name, nlohmann::ordered_json{{"dtype", dtype_name(info.dtype)},
                                     {"shape", info.shape},
                                     {"data_offsets", {offset, offset + num_bytes}}});
    offset += num_bytes;
  }
  std::string text = header.dump();
  const auto used = static_cast<int64_t>(kLengthBytes + text.size());
  text.append(static_cast<size_t>((alignment - used % alignment) % alignment), ' ');
  const uint64_t length = text.size();
  text.insert(0, reinterpret_cast<const char*>(&length), sizeof(length));
  return text;
}

}  // namespace tessera::checkpoint
