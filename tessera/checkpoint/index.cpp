#include "tessera/checkpoint/index.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <set>
#include <tuple>

#include "tessera/base/error.h"
#include "tessera/base/strict_json.h"
#include "tessera/checkpoint/index_schema.h"
#include "tessera/checkpoint/tiling.h"

namespace tessera::checkpoint {
namespace {

using nlohmann::json;

constexpr std::string_view kFormat = "tessera-checkpoint";

/// A place in the index: every error starts with it.
struct Place {
  std::string where;
  const json& value;

  template <typename... Args>
  [[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) const {
    user_error("{}: {}", where, fmt::format(format, std::forward<Args>(args)...));
  }

  Place at(const char* key) const {
    if (!value.is_object() || !value.contains(key)) refuse("expected an object with \"{}\"", key);
    return {fmt::format("{}: {}", where, key), value.at(key)};
  }
  Place at(size_t i) const { return {fmt::format("{}[{}]", where, i), value.at(i)}; }

  int64_t whole_number() const {
    if (!value.is_number_unsigned() ||
        value.get<uint64_t>() > uint64_t{std::numeric_limits<int64_t>::max()}) {
      refuse("expected a whole number of 0 or more, got {}", value.type_name());
    }
    return value.get<int64_t>();
  }
  const std::string& text() const {
    if (!value.is_string()) refuse("expected text, got {}", value.type_name());
    return value.get_ref<const std::string&>();
  }
  size_t list_size() const {
    if (!value.is_array()) refuse("expected a list, got {}", value.type_name());
    return value.size();
  }
};

IndexedFile parse_file(const Place& place) {
  IndexedFile file{.name = place.at("name").text(), .num_bytes = place.at("bytes").whole_number()};
  const bool stays = !file.name.empty() && file.name != "." && file.name != ".." &&
                     file.name.find('/') == std::string::npos;
  // A line of an error shows it as it is.
  const bool plain = std::ranges::all_of(file.name, [](char c) { return c >= ' ' && c != 127; });
  if (!stays || !plain) {
    place.refuse("name: expected a file of this folder, got {}", place.at("name").value.dump());
  }
  const auto checksums = place.at("checksums");
  if (!from_hex(checksums.text(), file.checksums) ||
      static_cast<int64_t>(file.checksums.size()) != num_blocks(file.num_bytes)) {
    checksums.refuse("expected 16 hexadecimal digits for each of {} blocks",
                     num_blocks(file.num_bytes));
  }
  return file;
}

TensorInfo parse_info(const Place& place) {
  TensorInfo info;
  const auto dtype = dtype_named(place.at("dtype").text());
  if (!dtype) place.refuse("unknown dtype {}", place.at("dtype").value.dump());
  info.dtype = *dtype;
  const auto shape = place.at("shape");
  int64_t bytes = dtype_bytes(*dtype);
  for (size_t i = 0; i < shape.list_size(); ++i) {
    info.shape.push_back(shape.at(i).whole_number());
    if (__builtin_mul_overflow(bytes, std::max<int64_t>(info.shape.back(), 1), &bytes)) {
      shape.refuse("overflows");
    }
  }
  return info;
}

Stripe parse_stripe(const Place& place) {
  const Stripe stripe{.offset = place.at(4).whole_number(),
                      .run = place.at(5).whole_number(),
                      .stride = place.at(6).whole_number()};
  const auto& [offset, run, stride] = stripe;
  if (run < 1 || run >= stride || offset > stride - run) {
    place.refuse("expected a stripe of 0 < run < stride and offset + run <= stride, got {}+{}/{}",
                 offset, run, stride);
  }
  return stripe;
}

StoredExtent parse_range(const Place& place, int64_t version, int64_t element_bytes,
                         const std::vector<IndexedFile>& files) {
  const bool striped = version >= kStripedVersion && place.list_size() == 7;
  if (!striped && place.list_size() != 4) {
    place.refuse("expected [begin, length, file, offset]{}",
                 version < kStripedVersion ? "" : " and, of a stripe, its offset, run and stride");
  }
  StoredExtent range{{place.at(size_t{0}).whole_number(), place.at(1).whole_number()},
                     static_cast<size_t>(place.at(2).whole_number()),
                     place.at(3).whole_number()};
  if (range.file >= files.size()) {
    place.refuse("file: expected one of {}, got number {}", files.size(), range.file);
  }
  int64_t end = 0;
  if (__builtin_mul_overflow(range.length, element_bytes, &end) ||
      __builtin_add_overflow(end, range.offset, &end) || end > files[range.file].num_bytes) {
    place.refuse("expected bytes inside {} of {} bytes", files[range.file].name,
                 files[range.file].num_bytes);
  }
  if (!striped) return range;
  range.stripe = parse_stripe(place);
  if (range.length == 0) place.refuse("expected elements of its stripe, got none");
  return range;
}

IndexedTensor parse_tensor(const Place& place, int64_t version,
                           const std::vector<IndexedFile>& files) {
  IndexedTensor tensor{.info = parse_info(place)};
  const auto ranges = place.at("ranges");
  for (size_t i = 0; i < ranges.list_size(); ++i) {
    tensor.ranges.push_back(
        parse_range(ranges.at(i), version, dtype_bytes(tensor.info.dtype), files));
  }
  const auto flaw = untiled(tensor.info.num_elements(), tensor.ranges);
  if (!flaw.empty()) {
    ranges.refuse("expected each of the {} elements of shape [{}] once, got {}",
                  tensor.info.num_elements(), fmt::join(tensor.info.shape, ", "), flaw);
  }
  const auto late = std::ranges::is_sorted_until(tensor.ranges, {}, &StoredExtent::first);
  if (late != tensor.ranges.end()) {
    ranges.at(static_cast<size_t>(late - tensor.ranges.begin()))
        .refuse("expected ranges in the order of their first elements, got {} after {}",
                late->first(), std::prev(late)->first());
  }
  return tensor;
}

/// No two ranges share bytes of a file.
void check_apart(const std::filesystem::path& path, const Index& index) {
  std::vector<std::tuple<size_t, int64_t, int64_t, const std::string*>> parts;
  for (const auto& [name, tensor] : index.tensors) {
    for (const auto& range : tensor.ranges) {
      const int64_t bytes = range.length * dtype_bytes(tensor.info.dtype);
      if (bytes > 0) parts.emplace_back(range.file, range.offset, range.offset + bytes, &name);
    }
  }
  std::ranges::sort(parts);
  for (size_t i = 1; i < parts.size(); ++i) {
    const auto& [file, begin, end, name] = parts[i];
    const auto& [other_file, other_begin, other_end, other] = parts[i - 1];
    if (file != other_file || begin >= other_end) continue;
    user_error("{}: tensors {} and {}: they overlap at byte {} of {}", path.string(),
               json(*other).dump(), json(*name).dump(), begin, index.files[file].name);
  }
}

}  // namespace

std::string format_index(const Index& index) {
  json files = json::array(), tensors = json::object();
  int64_t version = kFormatVersion;
  for (const auto& file : index.files) {
    std::string checksums;
    for (const auto checksum : file.checksums) checksums += to_hex(checksum);
    files.push_back({{"name", file.name}, {"bytes", file.num_bytes}, {"checksums", checksums}});
  }
  for (const auto& [name, tensor] : index.tensors) {
    json ranges = json::array();
    for (const auto& range : tensor.ranges) {
      ranges.push_back({range.begin, range.length, range.file, range.offset});
      const auto& [offset, run, stride] = range.stripe;
      if (range.stripe.whole()) continue;
      ranges.back().insert(ranges.back().end(), {offset, run, stride});
      version = kStripedVersion;
    }
    tensors[name] = {{"dtype", dtype_name(tensor.info.dtype)},
                     {"shape", tensor.info.shape},
                     {"ranges", std::move(ranges)}};
  }
  return json{{"format", kFormat},         {"version", version},
              {"step", index.step},        {"block_bytes", kBlockBytes},
              {"layout", index.layout},    {"state", index.state},
              {"model", index.model},      {"config", index.config},
              {"files", std::move(files)}, {"tensors", std::move(tensors)}}
      .dump();
}

Index parse_index(const std::filesystem::path& path, std::string_view text) {
  const json parsed = parse_strict_json(path, text);
  const Place root{path.string(), parsed};
  if (root.at("format").text() != kFormat) root.refuse("format: expected {}", kFormat);
  const int64_t version = root.at("version").whole_number();
  if (version != kFormatVersion && version != kStripedVersion) {
    root.refuse("version: expected {} or {}, got {}; read it with the Tessera that wrote it",
                kFormatVersion, kStripedVersion, version);
  }
  if (root.at("block_bytes").whole_number() != kBlockBytes) {
    root.refuse("block_bytes: expected {}", kBlockBytes);
  }
  Index index{.step = root.at("step").whole_number(),
              .layout = root.at("layout").value,
              .state = root.at("state").value,
              .model = root.at("model").value,
              .config = root.at("config").text()};
  const auto files = root.at("files");
  std::set<std::string_view> names;
  for (size_t i = 0; i < files.list_size(); ++i) index.files.push_back(parse_file(files.at(i)));
  for (const auto& file : index.files) {
    if (!names.insert(file.name).second) files.refuse("{} stands twice", file.name);
  }
  const auto tensors = root.at("tensors");
  if (!tensors.value.is_object()) tensors.refuse("expected an object");
  for (const auto& [name, value] : tensors.value.items()) {
    const Place place{fmt::format("{}: tensor {}", path.string(), json(name).dump()), value};
    index.tensors.emplace(name, parse_tensor(place, version, index.files));
  }
  check_apart(path, index);
  check_schema(path, index);
  return index;
}

}  // namespace tessera::checkpoint
