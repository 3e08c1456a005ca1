#include "tessera/checkpoint/formats/write_tensor.h"

#include <algorithm>
#include <vector>

#include "tessera/checkpoint/convert_dtype.h"

namespace tessera::checkpoint {
namespace {

void write_bytes(std::span<const std::byte> bytes, AtomicFile& file) {
  file.write({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
}

}  // namespace

void write_values(const std::string& name, std::span<const std::byte> values, DType from, DType to,
                  AtomicFile& file) {
  if (from == to) return write_bytes(values, file);
  const auto count = values.size() / static_cast<size_t>(dtype_bytes(from));
  std::vector<std::byte> converted(count * static_cast<size_t>(dtype_bytes(to)));
  convert_tensor(name, values, from, converted, to);
  write_bytes(converted, file);
}

void write_tensor(const TensorSource& source, const std::string& name, DType dtype,
                  AtomicFile& file) {
  const auto& info = source.info(name);
  std::vector<std::byte> values;
  for (int64_t begin = 0, end = info.num_elements(); begin < end; begin += kBufferElements) {
    const int64_t count = std::min(kBufferElements, end - begin);
    values.resize(static_cast<size_t>(count * dtype_bytes(info.dtype)));
    source.read(name, begin, values);
    write_values(name, values, info.dtype, dtype, file);
  }
}

void write_safetensors(const TensorSource& source,
                       std::vector<std::pair<std::string, TensorInfo>> tensors,
                       const std::filesystem::path& path, const Metadata& metadata) {
  std::ranges::stable_sort(tensors, std::greater<>(),
                           [](const auto& tensor) { return dtype_bytes(tensor.second.dtype); });
  AtomicFile file(path);
  file.write(format_safetensors_header(path, tensors, metadata));
  for (const auto& [name, info] : tensors) write_tensor(source, name, info.dtype, file);
  file.commit();
}

}  // namespace tessera::checkpoint
