// How many rows of logits the head makes at a time (kernels/linear_cross_entropy.h), which estimates must know.
#pragma once

#include <algorithm>
#include <cstdint>

namespace tessera {

/// Rows of [rows, vocab] logits in float32. On a CPU what stays in its caches; on a GPU 1 GiB, in whole tiles of its products
/// and chunks alike.
inline int64_t loss_chunk_rows(int64_t rows, int64_t vocab, bool on_gpu) {
  constexpr int64_t kBytesOfCpu = int64_t{32} << 20, kBytesOfGpu = int64_t{1} << 30;
  // A product packs all of the head's weight for each chunk: with 64 rows and a vocabulary of 128k that took as long as
  // multiplying.
  constexpr int64_t kFewest = 256;
  const int64_t most = std::max(kFewest, (on_gpu ? kBytesOfGpu : kBytesOfCpu) / 4 / vocab);
  if (!on_gpu) return std::min(rows, most);
  const int64_t tiles = (rows + kFewest - 1) / kFewest, most_tiles = most / kFewest;
  const int64_t chunks = std::max<int64_t>(1, (tiles + most_tiles - 1) / most_tiles);
  return std::min(rows, (tiles + chunks - 1) / chunks * kFewest);
}

}  // namespace tessera
