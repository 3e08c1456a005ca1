#include "tessera/checkpoint/formats/transpose.h"

#include <algorithm>
#include <cassert>
#include <cstring>

namespace tessera::checkpoint {
namespace {

template <typename Element>
void transpose_elements(Rows<const std::byte> source, Rows<std::byte> destination, int64_t rows,
                        int64_t columns) {
  constexpr auto kBytes = static_cast<int64_t>(sizeof(Element));
  constexpr int64_t kBlock = 64 / kBytes;  // a cache line
  for (int64_t first_row = 0; first_row < rows; first_row += kBlock) {
    const int64_t end_row = std::min(rows, first_row + kBlock);
    for (int64_t first = 0; first < columns; first += kBlock) {
      const int64_t end = std::min(columns, first + kBlock);
      for (int64_t row = first_row; row < end_row; ++row) {
        for (int64_t column = first; column < end; ++column) {
          std::memcpy(destination.data + (row * destination.stride + column) * kBytes,
                      source.data + (column * source.stride + row) * kBytes, sizeof(Element));
        }
      }
    }
  }
}

}  // namespace

void transpose(Rows<const std::byte> source, Rows<std::byte> destination, int64_t rows,
               int64_t columns, int64_t element_bytes) {
  assert(element_bytes == 2 || element_bytes == 4 || element_bytes == 8);
  const auto run = element_bytes == 2   ? transpose_elements<uint16_t>
                   : element_bytes == 4 ? transpose_elements<uint32_t>
                                        : transpose_elements<uint64_t>;
  run(source, destination, rows, columns);
}

}  // namespace tessera::checkpoint
