#include "tessera/checkpoint/source_view.h"

#include <fmt/ranges.h>

#include <vector>

#include "tessera/base/error.h"
#include "tessera/checkpoint/convert_dtype.h"

namespace tessera::checkpoint {

void SourceView::add(const std::string& name, const TensorSource& source, const std::string& stored,
                     std::optional<DType> dtype) {
  auto info = source.info(stored);
  origins_[name] = {&source, stored, info.dtype};
  if (dtype && is_float(info.dtype)) info.dtype = *dtype;
  tensors_[name] = std::move(info);
}

void SourceView::reshape(const std::string& name, const std::vector<int64_t>& shape) {
  auto& info = tensors_.at(name);
  if (TensorInfo{info.dtype, shape}.num_elements() != info.num_elements()) {
    user_error("{}: '{}': expected the elements of shape [{}], got shape [{}]", path_.string(),
               name, fmt::join(shape, ", "), fmt::join(info.shape, ", "));
  }
  info.shape = shape;
}

void SourceView::report_reads(const Progress& progress) {
  if (!progress) return;
  on_read_ = [progress, done = int64_t{0}, total = total_bytes(*this)](int64_t bytes) mutable {
    progress(done += bytes, total);
  };
}

void SourceView::read_part(const std::string& name, const TensorInfo& info, int64_t begin,
                           std::span<std::byte> destination) const {
  const auto& origin = origins_.at(name);
  if (origin.dtype == info.dtype) {
    origin.source->read(origin.name, begin, destination);
  } else {
    const auto count = std::ssize(destination) / dtype_bytes(info.dtype);
    std::vector<std::byte> values(static_cast<size_t>(count * dtype_bytes(origin.dtype)));
    origin.source->read(origin.name, begin, values);
    convert_values(values, origin.dtype, destination, info.dtype);
  }
  if (on_read_) on_read_(std::ssize(destination));
}

int64_t total_bytes(const TensorSource& source) {
  int64_t bytes = 0;
  for (const auto& [name, info] : source.tensors()) bytes += info.num_bytes();
  return bytes;
}

}  // namespace tessera::checkpoint
