// Chunks, which are blocks of a tensor: whether they cover it, and what one shares with a range.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace tessera::checkpoint {

/// The elements of a tensor with offsets[d] <= index[d] < offsets[d] + sizes[d] for each dim d.
struct DcpChunk {
  std::vector<int64_t> offsets, sizes;
};

/// What keeps `chunks`, all inside a tensor of `shape`, from covering each of its elements exactly
/// once: "" or a line. Chunks without elements do not count. Cost: O(n log n) for n chunks.
std::string tiling_problem(const std::vector<int64_t>& shape, const std::vector<DcpChunk>& chunks);

/// `count` elements, one after the other in a tensor and in one of its chunks (both row-major).
struct ChunkRun {
  int64_t in_tensor = 0;  ///< first element
  int64_t in_chunk = 0;   ///< the same element, counted in the chunk
  int64_t count = 0;
};

/// Calls `use` for each run that `chunk` shares with elements [begin, end) of a tensor of `shape`,
/// in their order. Cost: the runs, and the logarithm of those before them.
void for_each_run(const std::vector<int64_t>& shape, const DcpChunk& chunk, int64_t begin,
                  int64_t end, const std::function<void(const ChunkRun&)>& use);

}  // namespace tessera::checkpoint
