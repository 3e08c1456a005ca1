// Matrices turned over, without LibTorch.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tessera::checkpoint {

/// Rows of a matrix that lie `stride` elements apart.
template <typename Byte>
struct Rows {
  Byte* data;
  int64_t stride;
};

/// destination[r][c] = source[c][r] for r < rows, c < columns; elements of 2, 4 or 8 bytes. In
/// blocks that stay in the first cache.
void transpose(Rows<const std::byte> source, Rows<std::byte> destination, int64_t rows,
               int64_t columns, int64_t element_bytes);

}  // namespace tessera::checkpoint
