#include "tessera/checkpoint/source_view.h"

#include <fmt/ranges.h>

#include <cassert>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/checkpoint/convert_dtype.h"

namespace tessera::checkpoint {

void SourceView::add(const std::string& name, const TensorSource& source, const std::string& stored,
                     std::optional<DType> dtype) {
  auto info = source.info(stored);
  kept_->clear();
  origins_[name] = {{{&source, stored, straight(0, 0, info.num_elements())}}, info.dtype};
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
  kept_->clear();
  origin.pieces.push_back(
      {&source, stored, straight(0, info.num_elements(), added.num_elements())});
  info.shape[0] += added.shape[0];
}

void SourceView::add_part(const std::string& name, const TensorSource& source,
                          const std::string& stored, const Strided& part,
                          std::optional<DType> dtype) {
  const auto& found = source.info(stored).shape;
  if (found != part.of) {
    user_error("{}: '{}': expected shape [{}], which holds '{}', got [{}]", source.path().string(),
               stored, fmt::join(part.of, ", "), name, fmt::join(found, ", "));
  }
  add(name, source, stored, dtype);
  tensors_.at(name).shape = part.shape;
  origins_.at(name).pieces.front().walk = out_of(part);
}

void SourceView::put_part(const std::string& name, const TensorSource& source,
                          const std::string& stored, const Strided& part,
                          std::optional<DType> dtype) {
  const auto& added = source.info(stored);
  if (added.shape != part.shape) {
    user_error("{}: '{}': expected shape [{}], as a part of '{}', got [{}]", source.path().string(),
               stored, fmt::join(part.shape, ", "), name, fmt::join(added.shape, ", "));
  }
  if (!tensors_.contains(name)) {
    add(name, source, stored, dtype);
    tensors_.at(name).shape = part.of;
    origins_.at(name).pieces.front().walk = into(part);
    return;
  }
  assert(tensors_.at(name).shape == part.of);
  auto& origin = origins_.at(name);
  if (origin.dtype != added.dtype) {
    user_error("{}: '{}': expected {}, as the other parts of '{}', got {}", source.path().string(),
               stored, dtype_name(origin.dtype), name, dtype_name(added.dtype));
  }
  kept_->clear();
  origin.pieces.push_back({&source, stored, into(part)});
}

void SourceView::add_rows(const std::string& name, const TensorSource& source,
                          const std::string& stored, const Rows& rows, std::optional<DType> dtype) {
  const auto& info = source.info(stored);
  const int64_t width = info.shape.size() < 2 ? 1 : info.shape.back();
  const int64_t end = rows.first_row + rows.rows;
  if (info.shape.empty() || end * width > info.num_elements()) {
    user_error("{}: '{}': expected at least {} rows, got shape [{}]", source.path().string(),
               stored, end, fmt::join(info.shape, ", "));
  }
  const bool is_vector = info.shape.size() < 2;
  add_part(name, source, stored,
           {.of = info.shape,
            .offset = rows.first_row * width,
            .shape = is_vector ? std::vector{rows.rows} : std::vector{rows.rows, width},
            .strides = is_vector ? std::vector{width} : std::vector{width, int64_t{1}}},
           dtype);
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

void SourceView::read_pieces(const Origin& origin, int64_t begin,
                             std::span<std::byte> destination) const {
  const int64_t bytes = dtype_bytes(origin.dtype), end = begin + std::ssize(destination) / bytes;
  for (const auto& [source, name, walk] : origin.pieces) {
    const WalkPart part{walk.before(begin), walk.before(end), begin, bytes, destination};
    if (!worth_keeping(walk, part)) {
      read_walk(*source, name, walk, part);
      continue;
    }
    const auto values = kept_->get(walk, [source = source, &name = name, &walk = walk, bytes] {
      std::vector<std::byte> all(static_cast<size_t>(walk.count() * bytes));
      auto alone = walk;
      alone.to = 0, alone.columns.to = 1, alone.rows.to = alone.columns.count;
      read_walk(*source, name, alone, {0, walk.count(), 0, bytes, all});
      return all;
    });
    copy_walk(*values, walk, part);
  }
}

void SourceView::read_part(const std::string& name, const TensorInfo& info, int64_t begin,
                           std::span<std::byte> destination) const {
  const auto& origin = origins_.at(name);
  if (origin.dtype == info.dtype) {
    read_pieces(origin, begin, destination);
  } else {
    const auto count = std::ssize(destination) / dtype_bytes(info.dtype);
    std::vector<std::byte> values(static_cast<size_t>(count * dtype_bytes(origin.dtype)));
    read_pieces(origin, begin, values);
    convert_tensor(name, values, origin.dtype, destination, info.dtype);
  }
  if (on_read_) on_read_(std::ssize(destination));
}

int64_t total_bytes(const TensorSource& source) {
  int64_t bytes = 0;
  for (const auto& [name, info] : source.tensors()) bytes += info.num_bytes();
  return bytes;
}

}  // namespace tessera::checkpoint
