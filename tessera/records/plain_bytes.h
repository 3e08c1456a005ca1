// The bytes of a file, of which .gz and .zst are decompressed on the way.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <vector>

#include "tessera/base/input_file.h"
#include "tessera/records/file_type.h"

struct z_stream_s;
struct ZSTD_DCtx_s;

namespace tessera::records {

/// Memory: 64 KiB and the decompressor's window (gzip 32 KiB; zstd as the file says, to 128 MiB).
class PlainBytes {
 public:
  PlainBytes(const std::filesystem::path& path, Compression compression);
  ~PlainBytes();
  PlainBytes(const PlainBytes&) = delete;
  PlainBytes& operator=(const PlainBytes&) = delete;

  /// The next bytes, at most as many as `to` takes; 0: the end. UserError: the file was written to
  /// meanwhile, is no gzip or zstd, is damaged, or ends in the middle.
  size_t read(std::span<char> to);

  const std::filesystem::path& path() const { return file_.path(); }

 private:
  bool refill();
  size_t inflate_some(std::span<char> to);
  size_t decompress_some(std::span<char> to);
  [[noreturn]] void refuse(const char* kind, const char* why) const;

  InputFile file_;
  Compression compression_;
  std::vector<char> packed_;
  size_t packed_at_ = 0, packed_end_ = 0;
  bool is_within_ = false;  ///< a compressed stream has begun and not ended
  z_stream_s* gzip_ = nullptr;
  ZSTD_DCtx_s* zstd_ = nullptr;
};

}  // namespace tessera::records
