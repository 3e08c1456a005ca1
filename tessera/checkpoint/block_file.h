// Files of a checkpoint, written and read in large parts whose blocks are summed on the way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <vector>

#include "tessera/base/page_buffer.h"
#include "tessera/checkpoint/checksum.h"
#include "tessera/checkpoint/index.h"

namespace tessera::checkpoint {

inline constexpr int64_t kPartBytes = 8 * kBlockBytes;  ///< of one read or write

/// The bytes from `offset` on (a multiple of kPartBytes) of a file to be written: `scratch` filled
/// with them, or memory of the source's own that begins at a page and ends with a whole one.
using PartSource =
    std::function<std::span<const std::byte>(int64_t offset, std::span<std::byte> scratch)>;

/// Writes a new file of `num_bytes`, flushed to disk when the call returns, and tells its blocks'
/// checksums. Past the page cache where the file system can (half the time, and training's cache
/// stays). While one part is written the next one is fetched and summed. Memory: two parts.
/// SystemError with `path`: no space, ..; what was written stays.
std::vector<Checksum> write_parts(const std::filesystem::path& path, int64_t num_bytes,
                                  const PartSource& source);

/// Bytes [begin, end) of a file; both at a block's begin, or the end of the file.
struct BlockRange {
  int64_t begin = 0, end = 0;
};

/// Reads `wanted` (in order, apart) of `folder`'s `file`, checks each block, and calls use(offset,
/// bytes) for parts of at most kPartBytes, in order; meanwhile the next seven are read.
/// DamagedCheckpoint, one line: missing, a link, of another size, a block with another checksum.
/// SystemError: the disk, no right to read.
void read_parts(const std::filesystem::path& folder, const IndexedFile& file,
                std::span<const BlockRange> wanted,
                const std::function<void(int64_t offset, std::span<const std::byte> bytes)>& use);

/// Does `folder` hold `file`, as a plain file of its size? Throws as read_parts otherwise.
void check_size(const std::filesystem::path& folder, const IndexedFile& file);

}  // namespace tessera::checkpoint
