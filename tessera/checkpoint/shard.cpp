#include "tessera/checkpoint/shard.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/checkpoint/block_file.h"
#include "tessera/checkpoint/safetensors_header.h"
#include "tessera/checkpoint/tiling.h"

namespace tessera::checkpoint {
namespace {

/// `extent` without its stripe if its elements lie in the tensor without a gap, as do those of a
/// tensor cut along its first dimension: then any other range may stand beside it, and old readers
/// know it.
TensorExtent in_fewest_words(TensorExtent extent) {
  if (extent.length == 0) return extent;
  const int64_t first = extent.stripe.position(extent.begin);
  const int64_t last = extent.stripe.position(extent.begin + extent.length - 1);
  if (last - first != extent.length - 1) return extent;
  extent.begin = first;
  extent.stripe = {};
  return extent;
}

/// The name, dtype and shape under which an extent stands in the file.
std::pair<std::string, TensorInfo> stored_as(const TensorExtent& extent) {
  if (extent.length == extent.info.num_elements()) return {extent.name, extent.info};
  const auto& [offset, run, stride] = extent.stripe;
  const auto stripe = extent.stripe.whole() ? "" : fmt::format(" of {}+{}/{}", offset, run, stride);
  return {
      fmt::format("{}[{}:{}{}]", extent.name, extent.begin, extent.begin + extent.length, stripe),
      TensorInfo{extent.info.dtype, {extent.length}}};
}

}  // namespace

ShardLayout::ShardLayout(std::vector<TensorExtent> extents) : extents_(std::move(extents)) {
  std::ranges::transform(extents_, extents_.begin(), in_fewest_words);
  in_file_order(extents_, [](const TensorExtent& extent) { return extent.info.dtype; });
  std::vector<std::pair<std::string, TensorInfo>> stored;
  for (const auto& extent : extents_) stored.push_back(stored_as(extent));
  // Tensors begin at a page: a file mapped or read directly needs no copy.
  header_ = format_safetensors_header(shard_name(0), stored, {{"format", "pt"}}, kPageBytes);
  num_bytes_ = std::ssize(header_);
  for (const auto& extent : extents_) {
    offsets_.push_back(num_bytes_);
    num_bytes_ += extent.num_bytes();
  }
}

void ShardLayout::fill(int64_t offset, std::span<std::byte> destination, const Copy& copy) const {
  const int64_t end = offset + std::ssize(destination);
  const auto at = [&](int64_t begin, int64_t bytes) {
    return destination.subspan(static_cast<size_t>(begin - offset), static_cast<size_t>(bytes));
  };
  if (offset < std::ssize(header_)) {
    const int64_t bytes = std::min(end, static_cast<int64_t>(header_.size())) - offset;
    std::memcpy(at(offset, bytes).data(), header_.data() + offset, static_cast<size_t>(bytes));
  }
  const auto first = std::ranges::upper_bound(offsets_, offset);
  for (auto i = static_cast<size_t>(std::max<std::ptrdiff_t>(first - offsets_.begin() - 1, 0));
       i < extents_.size() && offsets_[i] < end; ++i) {
    const int64_t from = std::max(offsets_[i], offset);
    const int64_t to = std::min(offsets_[i] + extents_[i].num_bytes(), end);
    if (from < to) copy(i, from - offsets_[i], at(from, to - from));
  }
}

void ShardLayout::add_to(Index& index, size_t file) const {
  for (size_t i = 0; i < extents_.size(); ++i) {
    const auto& extent = extents_[i];
    auto& tensor = index.tensors[extent.name];
    tensor.info = extent.info;
    if (extent.length == 0) continue;
    tensor.ranges.push_back({extent, file, offsets_[i]});
  }
}

int64_t even_cut(int64_t all, int64_t parts, int64_t number, int64_t begin, int64_t element_bytes,
                 int64_t count) {
  const int64_t at = all / parts * number + all % parts * number / parts;  // no overflow
  return std::clamp<int64_t>((at - begin) / element_bytes, 0, count);
}

std::string shard_name(size_t number) { return fmt::format("shard_{:05}.safetensors", number); }

bool is_shard_name(std::string_view name) {
  return name.starts_with("shard_") && name.ends_with(".safetensors");
}

void check_complete(const std::filesystem::path& path, Index& index) {
  for (auto& [name, tensor] : index.tensors) {
    const auto flaw = untiled(tensor.info.num_elements(), tensor.ranges);
    if (!flaw.empty()) {
      user_error("{}: tensor '{}': expected each of its {} elements once, got {}", path.string(),
                 name, tensor.info.num_elements(), flaw);
    }
    std::ranges::sort(tensor.ranges, {}, &StoredExtent::first);
  }
}

}  // namespace tessera::checkpoint
