#include "tessera/checkpoint/formats/gguf/file.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <fstream>
#include <set>

#include "tessera/base/error.h"
#include "tessera/base/text.h"

namespace tessera::checkpoint {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kMagic = "GGUF";
constexpr uint64_t kMostDims = 4, kMostAlignment = uint64_t{1} << 20;
constexpr int64_t kMostElements = int64_t{1} << 48;

/// Reads one thing after the other, never beyond the end.
class GgufCursor {
 public:
  explicit GgufCursor(const MappedFile& file) : path_(file.path()), text_(file.text()) {}

  size_t at() const { return at_; }
  uint64_t left() const { return text_.size() - at_; }

  template <typename Number>
  Number number() {
    Number value{};
    std::memcpy(&value, take(sizeof(value)).data(), sizeof(value));
    return value;
  }
  std::string_view take(uint64_t count) {
    if (count > left()) {
      user_error("{}: expected {} more bytes at byte {}, got {}: the file is cut or damaged",
                 path_.string(), count, at_, left());
    }
    const auto part = text_.substr(at_, count);
    at_ += count;
    return part;
  }
  std::string string() { return std::string(take(number<uint64_t>())); }

  /// A count of things that take at least `bytes` each.
  uint64_t count(const char* what, uint64_t bytes) {
    const auto value = number<uint64_t>();
    if (value > left() / bytes) {
      user_error("{}: says that it has {} {}, for which its {} bytes have no room", path_.string(),
                 value, what, text_.size());
    }
    return value;
  }

 private:
  const fs::path& path_;
  std::string_view text_;
  size_t at_ = 0;
};

uint64_t least_bytes(GgufType type) {
  switch (type) {
    case GgufType::u8:
    case GgufType::i8:
    case GgufType::boolean:
      return 1;
    case GgufType::u16:
    case GgufType::i16:
      return 2;
    case GgufType::u32:
    case GgufType::i32:
    case GgufType::f32:
      return 4;
    default:
      return 8;
  }
}

GgufType read_type(GgufCursor& cursor, const std::string& where) {
  const auto number = cursor.number<uint32_t>();
  if (number > static_cast<uint32_t>(GgufType::f64)) {
    user_error("{}: expected a type of 0 to 12, got {}", where, number);
  }
  return static_cast<GgufType>(number);
}

GgufValue read_value(GgufCursor& cursor, GgufType type, const std::string& where) {
  GgufValue value{.type = type};
  switch (type) {
    case GgufType::u8:
    case GgufType::boolean:
      value.held = uint64_t{cursor.number<uint8_t>()};
      break;
    case GgufType::i8:
      value.held = int64_t{cursor.number<int8_t>()};
      break;
    case GgufType::u16:
      value.held = uint64_t{cursor.number<uint16_t>()};
      break;
    case GgufType::i16:
      value.held = int64_t{cursor.number<int16_t>()};
      break;
    case GgufType::u32:
      value.held = uint64_t{cursor.number<uint32_t>()};
      break;
    case GgufType::i32:
      value.held = int64_t{cursor.number<int32_t>()};
      break;
    case GgufType::f32:
      value.held = double{cursor.number<float>()};
      break;
    case GgufType::u64:
      value.held = cursor.number<uint64_t>();
      break;
    case GgufType::i64:
      value.held = cursor.number<int64_t>();
      break;
    case GgufType::f64:
      value.held = cursor.number<double>();
      break;
    case GgufType::string:
      value.held = cursor.string();
      break;
    case GgufType::array: {
      value.element = read_type(cursor, where);
      if (value.element == GgufType::array) user_error("{}: has arrays in an array", where);
      std::vector<GgufValue> elements(cursor.count("elements", least_bytes(value.element)));
      for (auto& element : elements) element = read_value(cursor, value.element, where);
      value.held = std::move(elements);
    }
  }
  return value;
}

/// A tensor's shape, type and place behind the beginning of all data.
struct GgufEntry {
  std::string name;
  TensorInfo info;
  GgmlType type;
  uint64_t offset, num_bytes;
};

GgufEntry read_entry(GgufCursor& cursor, const std::string& path) {
  GgufEntry entry{.name = cursor.string()};
  const auto name = printable(entry.name);
  const auto num_dims = cursor.number<uint32_t>();
  if (num_dims > kMostDims)
    user_error("{}: {}: expected up to {} dimensions, got {}", path, name, kMostDims, num_dims);
  int64_t elements = 1;
  for (uint32_t i = 0; i < num_dims; ++i) {
    const auto size = cursor.number<uint64_t>();
    if (size < 1 || size > static_cast<uint64_t>(kMostElements / elements))
      user_error("{}: {}: its size {} is out of bounds", path, name, size);
    elements *= static_cast<int64_t>(size);
    entry.info.shape.insert(entry.info.shape.begin(), static_cast<int64_t>(size));
  }
  const auto number = cursor.number<uint32_t>();
  const auto* type = find_ggml_type(number);
  if (type == nullptr) {
    user_error(
        "{}: {}: is stored as ggml's type {}; read here are F32, F16, BF16, F64, Q8_0, Q5_0, Q5_1, "
        "Q4_0, Q4_K, Q5_K, Q6_K and whole numbers",
        path, name, number);
  }
  const int64_t row = entry.info.shape.empty() ? 1 : entry.info.shape.back();
  if (row % type->block_values != 0) {
    user_error("{}: {}: its rows of {} are no whole blocks of {}", path, name, row,
               type->block_values);
  }
  entry.type = type->type;
  entry.info.dtype = type->dtype;
  entry.num_bytes = static_cast<uint64_t>(elements / type->block_values * type->block_bytes);
  entry.offset = cursor.number<uint64_t>();
  return entry;
}

uint64_t alignment_of(const GgufValue* value, const std::string& path) {
  if (value == nullptr) return 32;
  const auto* number = std::get_if<uint64_t>(&value->held);
  if (number == nullptr || !std::has_single_bit(*number) || *number > kMostAlignment) {
    user_error("{}: general.alignment: expected a power of two up to {}", path, kMostAlignment);
  }
  return *number;
}

/// Tensors lie within the data, aligned, and none in another.
void check_places(std::vector<GgufEntry> entries, uint64_t data_bytes, uint64_t alignment,
                  const std::string& path) {
  std::ranges::sort(entries, {}, &GgufEntry::offset);
  uint64_t end = 0;
  for (const auto& entry : entries) {
    if (entry.offset % alignment != 0 || entry.offset < end || entry.offset > data_bytes ||
        entry.num_bytes > data_bytes - entry.offset) {
      user_error(
          "{}: {}: its {} bytes at {} of the data are not aligned, lie in another tensor's or "
          "beyond the file's end: it is cut or damaged",
          path, printable(entry.name), entry.num_bytes, entry.offset);
    }
    end = entry.offset + entry.num_bytes;
  }
}

}  // namespace

GgufSource::GgufSource(const fs::path& path)
    : TensorSource(path), file_(std::make_shared<MappedFile>(path)) {
  const auto where = path.string();
  GgufCursor cursor(*file_);
  if (cursor.take(kMagic.size()) != kMagic) user_error("{}: is no GGUF file", where);
  const auto version = cursor.number<uint32_t>();
  if (version != 2 && version != 3)
    user_error("{}: expected GGUF version 2 or 3, got {}", where, version);
  // The shortest tensor takes 8 bytes for its name, 4 for its dimensions, 4 for its type, 8 for its place.
  const auto num_tensors = cursor.count("tensors", 24);
  const auto num_keys = cursor.count("keys", 13);
  std::set<std::string, std::less<>> keys;
  for (uint64_t i = 0; i < num_keys; ++i) {
    auto key = cursor.string();
    if (!keys.insert(key).second) user_error("{}: has the key {} twice", where, printable(key));
    const auto place = where + ": " + printable(key);
    const auto type = read_type(cursor, place);
    metadata_.emplace_back(std::move(key), read_value(cursor, type, place));
  }
  std::vector<GgufEntry> entries;
  for (uint64_t i = 0; i < num_tensors; ++i) entries.push_back(read_entry(cursor, where));
  const auto alignment = alignment_of(find("general.alignment"), where);
  const auto begin = (cursor.at() + alignment - 1) / alignment * alignment;
  const auto size = file_->bytes().size();
  check_places(entries, size > begin ? size - begin : 0, alignment, where);
  for (auto& entry : entries) {
    if (!tensors_.emplace(entry.name, entry.info).second)
      user_error("{}: has the tensor {} twice", where, printable(entry.name));
    stored_[entry.name] = {.type = entry.type, .offset = begin + entry.offset};
  }
}

const GgufValue* GgufSource::find(std::string_view key) const {
  const auto found = std::ranges::find(metadata_, key, &GgufMetadata::value_type::first);
  return found == metadata_.end() ? nullptr : &found->second;
}

GgmlType GgufSource::type(std::string_view name) const {
  info(name);  // refuses what is not there
  return stored_.find(name)->second.type;
}

void GgufSource::read_part(const std::string& name, const TensorInfo& info, int64_t begin,
                           std::span<std::byte> destination) const {
  const auto& stored = stored_.at(name);
  const auto& type = ggml_type_info(stored.type);
  const auto* data = file_->bytes().data() + stored.offset;
  if (type.block_values == 1) {
    if (!destination.empty())
      std::memcpy(destination.data(), data + begin * dtype_bytes(info.dtype), destination.size());
    return;
  }
  std::vector<float> values(static_cast<size_t>(type.block_values));
  const int64_t end = begin + static_cast<int64_t>(destination.size() / sizeof(float));
  for (int64_t at = begin; at < end;) {
    const int64_t block = at / type.block_values, skip = at % type.block_values;
    const int64_t count = std::min(type.block_values - skip, end - at);
    dequantize(stored.type,
               {data + block * type.block_bytes, static_cast<size_t>(type.block_bytes)}, values);
    std::memcpy(destination.data() + (at - begin) * 4, values.data() + skip,
                static_cast<size_t>(count) * sizeof(float));
    at += count;
  }
}

bool is_gguf(const fs::path& path) {
  if (!fs::is_regular_file(path)) return false;
  std::ifstream file(path, std::ios::binary);
  char begin[4] = {};
  file.read(begin, sizeof(begin));
  return file.gcount() == sizeof(begin) && std::string_view(begin, sizeof(begin)) == kMagic;
}

}  // namespace tessera::checkpoint
