#include "tessera/checkpoint/source_view.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/checkpoint/convert_dtype.h"

namespace tessera::checkpoint {

void SourceView::add(const std::string& name, const TensorSource& source, const std::string& stored,
                     std::optional<DType> dtype) {
  auto info = source.info(stored);
  origins_[name] = {{{{0, info.num_elements()}, &source, stored}}, info.dtype};
  if (dtype && is_float(info.dtype)) info.dtype = *dtype;
  tensors_[name] = std::move(info);
}

void SourceView::append_rows(const std::string& name, const TensorSource& source,
                             const std::string& stored, std::optional<DType> dtype) {
  if (!tensors_.contains(name)) return add(name, source, stored, dtype);
  const auto& added = source.info(stored);
  auto& info = tensors_.at(name);
  auto& origin = origins_.at(name);
  auto expected = info.shape;
  if (!expected.empty() && !added.shape.empty()) expected[0] = added.shape[0];
  if (expected != added.shape || origin.dtype != added.dtype) {
    user_error("{}: '{}': expected rows of {} [{}], as those that it is stored with, got {} [{}]",
               source.path().string(), stored, dtype_name(origin.dtype),
               fmt::join(info.shape, ", "), dtype_name(added.dtype), fmt::join(added.shape, ", "));
  }
  origin.stored.push_back({{0, added.num_elements()}, &source, stored});
  info.shape[0] += added.shape[0];
}

void SourceView::add_rows(const std::string& name, const TensorSource& source,
                          const std::string& stored, const Rows& rows, std::optional<DType> dtype) {
  add(name, source, stored, dtype);
  auto& info = tensors_.at(name);
  const int64_t width = info.shape.size() < 2 ? 1 : info.shape.back();
  const int64_t end = rows.first_row + rows.rows;
  if (info.shape.empty() || end * width > info.num_elements()) {
    user_error("{}: '{}': expected at least {} rows, got shape [{}]", source.path().string(),
               stored, end, fmt::join(info.shape, ", "));
  }
  if (rows.all != 0 && rows.all * width != info.num_elements()) {
    user_error("{}: '{}': expected {} rows in all, got shape [{}]", source.path().string(), stored,
               rows.all, fmt::join(info.shape, ", "));
  }
  info.shape = info.shape.size() < 2 ? std::vector{rows.rows} : std::vector{rows.rows, width};
  auto& part = origins_.at(name).stored.front();
  part.begin = rows.first_row * width, part.length = rows.rows * width;
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

void SourceView::read_stored(const Origin& origin, int64_t begin,
                             std::span<std::byte> destination) const {
  const int64_t width = dtype_bytes(origin.dtype);
  for (const auto& part : origin.stored) {
    if (destination.empty()) return;
    if (begin >= part.length) {
      begin -= part.length;
      continue;
    }
    const int64_t count = std::min(part.length - begin, std::ssize(destination) / width);
    part.source->read(part.name, part.begin + begin,
                      destination.first(static_cast<size_t>(count * width)));
    destination = destination.subspan(static_cast<size_t>(count * width));
    begin = 0;
  }
}

void SourceView::read_part(const std::string& name, const TensorInfo& info, int64_t begin,
                           std::span<std::byte> destination) const {
  const auto& origin = origins_.at(name);
  if (origin.dtype == info.dtype) {
    read_stored(origin, begin, destination);
  } else {
    const auto count = std::ssize(destination) / dtype_bytes(info.dtype);
    std::vector<std::byte> values(static_cast<size_t>(count * dtype_bytes(origin.dtype)));
    read_stored(origin, begin, values);
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
