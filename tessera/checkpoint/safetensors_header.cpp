#include "tessera/checkpoint/safetensors_header.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <set>
#include <tuple>

#include "tessera/base/error.h"

namespace tessera::checkpoint {
namespace {

using nlohmann::json;

static_assert(std::endian::native == std::endian::little,
              "safetensors are little endian and read in place");

constexpr uint64_t kMaxHeaderBytes = 100'000'000;
constexpr size_t kLengthBytes = 8;

struct NamedDtype {
  std::string_view name;
  c10::ScalarType dtype;
};
constexpr std::array kDtypes{
    NamedDtype{"F64", c10::kDouble},
    NamedDtype{"F32", c10::kFloat},
    NamedDtype{"F16", c10::kHalf},
    NamedDtype{"BF16", c10::kBFloat16},
    NamedDtype{"I64", c10::kLong},
    NamedDtype{"I32", c10::kInt},
    NamedDtype{"I16", c10::kShort},
    NamedDtype{"I8", c10::kChar},
    NamedDtype{"U64", c10::kUInt64},
    NamedDtype{"U32", c10::kUInt32},
    NamedDtype{"U16", c10::kUInt16},
    NamedDtype{"U8", c10::kByte},
    NamedDtype{"BOOL", c10::kBool},
    NamedDtype{"F8_E4M3", c10::kFloat8_e4m3fn},
    NamedDtype{"F8_E5M2", c10::kFloat8_e5m2},
};

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

c10::ScalarType parse_dtype(const Entry& entry) {
  const auto& dtype = entry.value.at("dtype");
  if (!dtype.is_string()) entry.refuse("dtype: expected text, got {}", dtype.dump());
  for (const auto& known : kDtypes) {
    if (known.name == dtype.get_ref<const std::string&>()) return known.dtype;
  }
  entry.refuse("unknown dtype {}", dtype.dump());
}

std::vector<int64_t> parse_shape(const Entry& entry) {
  const auto& shape = entry.value.at("shape");
  if (!shape.is_array()) entry.refuse("shape: expected a list, got {}", shape.type_name());
  std::vector<int64_t> sizes;
  for (const auto& size : shape) sizes.push_back(whole_number(entry, size, "shape"));
  return sizes;
}

/// Product of dtype size and shape. A zero does not excuse an overflow before or after it.
int64_t checked_bytes(const Entry& entry, c10::ScalarType dtype,
                      const std::vector<int64_t>& shape) {
  auto bytes = static_cast<int64_t>(c10::elementSize(dtype));
  for (const int64_t size : shape) {
    if (__builtin_mul_overflow(bytes, std::max<int64_t>(size, 1), &bytes)) {
      entry.refuse("shape [{}] overflows", fmt::join(shape, ", "));
    }
  }
  return std::ranges::find(shape, 0) == shape.end() ? bytes : 0;
}

/// Offsets in the returned info count from the end of the header.
TensorInfo parse_entry(const Entry& entry) {
  if (!entry.value.is_object()) entry.refuse("expected an object, got {}", entry.value.type_name());
  for (const auto* key : {"dtype", "shape", "data_offsets"}) {
    if (!entry.value.contains(key)) entry.refuse("{} is missing", key);
  }
  if (entry.value.size() != 3)
    entry.refuse("expected dtype, shape and data_offsets alone, got other keys");
  TensorInfo info{.dtype = parse_dtype(entry), .shape = parse_shape(entry)};
  const auto& offsets = entry.value.at("data_offsets");
  if (!offsets.is_array() || offsets.size() != 2)
    entry.refuse("data_offsets: expected [begin, end]");
  const int64_t begin = whole_number(entry, offsets[0], "data_offsets");
  const int64_t end = whole_number(entry, offsets[1], "data_offsets");
  if (begin > end) entry.refuse("data_offsets: expected begin <= end, got [{}, {}]", begin, end);
  const int64_t expected = checked_bytes(entry, info.dtype, info.shape);
  if (end - begin != expected) {
    entry.refuse("dtype and shape take {} bytes, but data_offsets [{}, {}] hold {}", expected,
                 begin, end, end - begin);
  }
  info.offset = begin;
  info.num_bytes = end - begin;
  return info;
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
    return std::tuple(tensor.second.offset, tensor.second.num_bytes, tensor.first);
  });
  int64_t end = 0;
  for (auto& [name, info] : header.tensors) {
    if (info.offset != end) {
      user_error(
          "{}: tensor {}: expected its bytes to begin at {}, where the one before ends, got {}: {}",
          path.string(), in_quotes(name), end, info.offset,
          info.offset < end ? "they overlap" : "a hole");
    }
    end += info.num_bytes;
    info.offset += static_cast<int64_t>(data_begin);
  }
  const auto available = static_cast<int64_t>(file_bytes - data_begin);
  if (end != available) {
    user_error("{}: {}: expected {} bytes of tensors after the header, got {}", path.string(),
               end > available ? "truncated" : "too long", end, available);
  }
}

}  // namespace

json parse_strict_json(const std::filesystem::path& path, std::string_view text) {
  // The parser takes a NUL for the end of the text and would accept anything after it.
  if (text.find('\0') != std::string_view::npos)
    user_error("{}: a NUL byte in its JSON", path.string());
  std::vector<std::set<std::string>> keys;  // of the objects that are open
  const auto callback = [&](int, json::parse_event_t event, json& parsed) {
    if (event == json::parse_event_t::object_start) keys.emplace_back();
    if (event == json::parse_event_t::object_end) keys.pop_back();
    if (event == json::parse_event_t::key &&
        !keys.back().insert(parsed.get<std::string>()).second) {
      user_error("{}: the key {} stands twice in its JSON", path.string(), parsed.dump());
    }
    return true;
  };
  try {
    return json::parse(text, callback);
  } catch (const json::parse_error& error) {
    user_error("{}: expected JSON in UTF-8, got an error at byte {} of it", path.string(),
               error.byte);
  } catch (const json::out_of_range&) {
    user_error("{}: a number in its JSON is too large", path.string());
  }
}

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

std::string_view safetensors_dtype(c10::ScalarType dtype) {
  for (const auto& known : kDtypes) {
    if (known.dtype == dtype) return known.name;
  }
  user_error("safetensors cannot hold the dtype {}", c10::toString(dtype));
}

}  // namespace tessera::checkpoint
