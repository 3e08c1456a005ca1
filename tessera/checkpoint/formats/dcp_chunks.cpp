#include "tessera/checkpoint/formats/dcp_chunks.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>

namespace tessera::checkpoint {
namespace {

int64_t volume(const std::vector<int64_t>& sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<>());
}

// A corner is a place where the number of chunks over an element changes; these changes, each with
// its sign, determine that number everywhere. So chunks tile a tensor exactly if their corners add
// up to those of the tensor itself.
constexpr size_t kMaxSplitDims = 4;

struct Corner {
  std::array<int64_t, kMaxSplitDims> place{};
  int64_t sign = 1;
};

void add_corners(const DcpChunk& chunk, const std::vector<size_t>& dims, int64_t sign,
                 std::vector<Corner>& corners) {
  for (unsigned ends = 0; ends < 1U << dims.size(); ++ends) {
    Corner corner{.sign = sign};
    for (size_t i = 0; i < dims.size(); ++i) {
      const bool is_end = (ends >> i & 1) != 0;
      corner.place[i] = chunk.offsets[dims[i]] + (is_end ? chunk.sizes[dims[i]] : 0);
      if (is_end) corner.sign = -corner.sign;
    }
    corners.push_back(corner);
  }
}

bool cancel_out(std::vector<Corner>& corners) {
  std::ranges::sort(corners, {}, &Corner::place);
  for (size_t i = 0; i < corners.size();) {
    int64_t sum = 0;
    const auto place = corners[i].place;
    for (; i < corners.size() && corners[i].place == place; ++i) sum += corners[i].sign;
    if (sum != 0) return false;
  }
  return true;
}

/// The dims along which some chunk is not as wide as the tensor.
std::vector<size_t> split_dims(const std::vector<int64_t>& shape,
                               const std::vector<DcpChunk>& chunks) {
  std::vector<size_t> dims;
  for (size_t dim = 0; dim < shape.size(); ++dim) {
    const auto is_split = [&](const DcpChunk& chunk) { return chunk.sizes[dim] != shape[dim]; };
    if (std::ranges::any_of(chunks, is_split)) dims.push_back(dim);
  }
  return dims;
}

}  // namespace

std::string tiling_problem(const std::vector<int64_t>& shape, const std::vector<DcpChunk>& chunks) {
  std::vector<DcpChunk> filled;
  int64_t sum = 0;
  const int64_t total = volume(shape);
  for (const auto& chunk : chunks) {
    const int64_t elements = volume(chunk.sizes);
    if (elements == 0) continue;
    if (elements > total - sum) return "its chunks overlap";
    sum += elements;
    filled.push_back(chunk);
  }
  if (sum < total) return fmt::format("its chunks hold {} of {} elements", sum, total);
  const auto dims = split_dims(shape, filled);
  if (dims.size() > kMaxSplitDims)
    return fmt::format("it is sharded along {} dims, and at most {} can be read", dims.size(),
                       kMaxSplitDims);
  std::vector<Corner> corners;
  for (const auto& chunk : filled) add_corners(chunk, dims, 1, corners);
  if (total > 0)
    add_corners({.offsets = std::vector<int64_t>(shape.size()), .sizes = shape}, dims, -1, corners);
  return cancel_out(corners) ? "" : "its chunks overlap and leave holes";
}

void for_each_run(const std::vector<int64_t>& shape, const DcpChunk& chunk, int64_t begin,
                  int64_t end, const std::function<void(const ChunkRun&)>& use) {
  if (volume(chunk.sizes) == 0) return;
  // A run goes along `inner` dims: the last one, and those before it while the chunk is as wide as
  // the tensor.
  size_t outer = shape.size();
  int64_t width = 1;   // of a run
  int64_t stride = 1;  // in the tensor, of dim `outer`
  while (outer > 0 && (outer == shape.size() || width == stride)) {
    --outer;
    width *= chunk.sizes[outer];
    stride *= shape[outer];
  }
  // The chunk's runs are numbered in their order, which is that of their places in the tensor.
  const auto place = [&](int64_t run) {
    int64_t at = 0, step = 1;
    for (size_t dim = shape.size(); dim-- > 0; step *= shape[dim]) {
      int64_t index = chunk.offsets[dim];
      if (dim < outer) {
        index += run % chunk.sizes[dim];
        run /= chunk.sizes[dim];
      }
      at += index * step;
    }
    return at;
  };
  int64_t low = 0, high = volume(chunk.sizes) / width;
  const int64_t num_runs = high;
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    if (place(middle) + width <= begin)
      low = middle + 1;
    else
      high = middle;
  }
  for (int64_t run = low; run < num_runs; ++run) {
    const int64_t start = place(run);
    if (start >= end) break;
    const int64_t first = std::max(start, begin), last = std::min(start + width, end);
    use({.in_tensor = first, .in_chunk = run * width + first - start, .count = last - first});
  }
}

}  // namespace tessera::checkpoint
