// Checksums of files, block by block (XXH3-64, https://xxhash.com).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::checkpoint {

/// A file has one checksum for each of these from its begin on; the last block may be shorter. So a
/// reader can check whatever part it reads, at the cost of at most two blocks beside it.
inline constexpr int64_t kBlockBytes = int64_t{1} << 20;

using Checksum = uint64_t;

Checksum checksum(std::span<const std::byte> bytes);
inline Checksum checksum(std::string_view text) { return checksum(std::as_bytes(std::span(text))); }

/// Appends the checksum of each block of `bytes`, which begin at a block's begin.
void append_checksums(std::span<const std::byte> bytes, std::vector<Checksum>& checksums);

inline int64_t num_blocks(int64_t bytes) {
  return bytes / kBlockBytes + (bytes % kBlockBytes == 0 ? 0 : 1);
}

std::string to_hex(Checksum checksum);  ///< 16 digits
/// Reverses to_hex for one or several checksums in a row; false if `text` is anything else.
bool from_hex(std::string_view text, std::vector<Checksum>& checksums);

}  // namespace tessera::checkpoint
