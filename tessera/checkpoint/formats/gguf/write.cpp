#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/checkpoint/convert_dtype.h"
#include "tessera/checkpoint/formats/gguf/file.h"
#include "tessera/checkpoint/formats/write_tensor.h"

namespace tessera::checkpoint {
namespace {

constexpr uint64_t kGgufAlignment = 32;

template <typename Number>
void append_number(Number value, std::string& bytes) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

void append_string(std::string_view text, std::string& bytes) {
  append_number<uint64_t>(text.size(), bytes);
  bytes += text;
}

void append_value(const GgufValue& value, std::string& bytes) {
  const auto whole = [&] { return std::get<uint64_t>(value.held); };
  const auto with_sign = [&] { return std::get<int64_t>(value.held); };
  switch (value.type) {
    case GgufType::u8:
    case GgufType::boolean:
      return append_number(static_cast<uint8_t>(whole()), bytes);
    case GgufType::i8:
      return append_number(static_cast<int8_t>(with_sign()), bytes);
    case GgufType::u16:
      return append_number(static_cast<uint16_t>(whole()), bytes);
    case GgufType::i16:
      return append_number(static_cast<int16_t>(with_sign()), bytes);
    case GgufType::u32:
      return append_number(static_cast<uint32_t>(whole()), bytes);
    case GgufType::i32:
      return append_number(static_cast<int32_t>(with_sign()), bytes);
    case GgufType::f32:
      return append_number(static_cast<float>(std::get<double>(value.held)), bytes);
    case GgufType::u64:
      return append_number(whole(), bytes);
    case GgufType::i64:
      return append_number(with_sign(), bytes);
    case GgufType::f64:
      return append_number(std::get<double>(value.held), bytes);
    case GgufType::string:
      return append_string(std::get<std::string>(value.held), bytes);
    case GgufType::array: {
      const auto& elements = std::get<std::vector<GgufValue>>(value.held);
      append_number(static_cast<uint32_t>(value.element), bytes);
      append_number<uint64_t>(elements.size(), bytes);
      for (const auto& element : elements) append_value(element, bytes);
    }
  }
}

uint64_t stored_bytes(const TensorSource& source, const GgufTensor& tensor,
                      const std::filesystem::path& path) {
  const auto& info = source.info(tensor.name);
  const auto& type = ggml_type_info(tensor.type);
  const int64_t row = info.shape.empty() ? 1 : info.shape.back();
  if (row % type.block_values != 0) {
    user_error("{}: {}: its rows of {} are no whole blocks of {}, as {} needs them", path.string(),
               tensor.name, row, type.block_values, type.name);
  }
  return static_cast<uint64_t>(info.num_elements() / type.block_values * type.block_bytes);
}

std::string padding(uint64_t size) {
  return std::string((kGgufAlignment - size % kGgufAlignment) % kGgufAlignment, '\0');
}

void write_blocks(const TensorSource& source, const GgufTensor& tensor, AtomicFile& file) {
  const auto& info = source.info(tensor.name);
  const auto& type = ggml_type_info(tensor.type);
  std::vector<std::byte> stored, blocks;
  std::vector<float> values;
  for (int64_t begin = 0, end = info.num_elements(); begin < end; begin += kBufferElements) {
    const auto count = static_cast<size_t>(std::min(kBufferElements, end - begin));
    stored.resize(count * static_cast<size_t>(dtype_bytes(info.dtype)));
    values.resize(count);
    blocks.resize(count / static_cast<size_t>(type.block_values) *
                  static_cast<size_t>(type.block_bytes));
    source.read(tensor.name, begin, stored);
    convert_values(stored, info.dtype, std::as_writable_bytes(std::span(values)), DType::f32);
    quantize(tensor.type, values, blocks);
    file.write({reinterpret_cast<const char*>(blocks.data()), blocks.size()});
  }
}

}  // namespace

GgufValue gguf_u32(uint64_t value) { return {.type = GgufType::u32, .held = value}; }
GgufValue gguf_f32(double value) { return {.type = GgufType::f32, .held = value}; }
GgufValue gguf_bool(bool value) { return {.type = GgufType::boolean, .held = uint64_t{value}}; }
GgufValue gguf_string(std::string value) {
  return {.type = GgufType::string, .held = std::move(value)};
}

GgufValue gguf_strings(const std::vector<std::string>& values) {
  std::vector<GgufValue> elements;
  for (const auto& value : values) elements.push_back(gguf_string(value));
  return {.type = GgufType::array, .held = std::move(elements), .element = GgufType::string};
}

GgufValue gguf_i32s(const std::vector<int64_t>& values) {
  std::vector<GgufValue> elements;
  for (const auto value : values) elements.push_back({.type = GgufType::i32, .held = value});
  return {.type = GgufType::array, .held = std::move(elements), .element = GgufType::i32};
}

GgufValue gguf_f32s(const std::vector<double>& values) {
  std::vector<GgufValue> elements;
  for (const auto value : values) elements.push_back(gguf_f32(value));
  return {.type = GgufType::array, .held = std::move(elements), .element = GgufType::f32};
}

void write_gguf(const TensorSource& source, const GgufMetadata& metadata,
                const std::vector<GgufTensor>& tensors, const std::filesystem::path& path) {
  std::string header = "GGUF";
  append_number<uint32_t>(3, header);
  append_number<uint64_t>(tensors.size(), header);
  append_number<uint64_t>(metadata.size(), header);
  for (const auto& [key, value] : metadata) {
    append_string(key, header);
    append_number(static_cast<uint32_t>(value.type), header);
    append_value(value, header);
  }
  uint64_t offset = 0;
  for (const auto& tensor : tensors) {
    const auto& shape = source.info(tensor.name).shape;
    append_string(tensor.name, header);
    append_number(static_cast<uint32_t>(shape.size()), header);
    for (auto size = shape.rbegin(); size != shape.rend(); ++size)
      append_number(static_cast<uint64_t>(*size), header);
    append_number(static_cast<uint32_t>(tensor.type), header);
    append_number(offset, header);
    const auto num_bytes = stored_bytes(source, tensor, path);
    offset += num_bytes + padding(num_bytes).size();
  }
  AtomicFile file(path);
  file.write(header + padding(header.size()));
  for (const auto& tensor : tensors) {
    const auto& type = ggml_type_info(tensor.type);
    if (type.block_values == 1) {
      write_tensor(source, tensor.name, type.dtype, file);
    } else {
      write_blocks(source, tensor, file);
    }
    file.write(padding(stored_bytes(source, tensor, path)));
  }
  file.commit();
}

}  // namespace tessera::checkpoint
