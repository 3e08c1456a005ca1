#include "tessera/records/parquet/codec.h"

#include <snappy-c.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <array>
#include <memory>

#include "tessera/records/parquet/bytes.h"

namespace tessera::records::parquet {
namespace {

constexpr const char* kDamaged = "a page that cannot be decompressed";

/// Room for more of a page; false if it is whole.
bool grow(std::string& text, size_t at, size_t bytes) {
  constexpr size_t kStep = 1 << 20;
  if (at == bytes) return false;
  if (at == text.size()) text.resize(std::min(bytes, std::max(2 * at, kStep)));
  return true;
}

std::string decompress_snappy(std::string_view packed, size_t bytes, const std::string& file) {
  // Three bytes stand for at most 64.
  size_t length = 0;
  if (snappy_uncompressed_length(packed.data(), packed.size(), &length) != SNAPPY_OK ||
      length != bytes || length / 64 > packed.size())
    refuse_damaged(file, kDamaged);
  std::string text(bytes, '\0');
  if (snappy_uncompress(packed.data(), packed.size(), text.data(), &length) != SNAPPY_OK ||
      length != bytes)
    refuse_damaged(file, kDamaged);
  return text;
}

std::string decompress_gzip(std::string_view packed, size_t bytes, const std::string& file) {
  z_stream stream{};
  constexpr int kGzipOrZlib = MAX_WBITS + 32;
  if (inflateInit2(&stream, kGzipOrZlib) != Z_OK) throw std::bad_alloc();
  const std::unique_ptr<z_stream, decltype(&inflateEnd)> end(&stream, inflateEnd);
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(packed.data()));
  stream.avail_in = static_cast<uInt>(packed.size());
  std::string text;
  for (size_t at = 0; grow(text, at, bytes);) {
    stream.next_out = reinterpret_cast<Bytef*>(text.data() + at);
    stream.avail_out = static_cast<uInt>(text.size() - at);
    auto status = inflate(&stream, Z_NO_FLUSH);
    at = text.size() - stream.avail_out;
    // Some writers make several streams of a page.
    if (status == Z_STREAM_END && at < bytes) status = inflateReset(&stream);
    if (status != Z_OK && status != Z_STREAM_END) refuse_damaged(file, kDamaged);
  }
  return text;
}

std::string decompress_zstd(std::string_view packed, size_t bytes, const std::string& file) {
  const std::unique_ptr<ZSTD_DCtx, decltype(&ZSTD_freeDCtx)> context(ZSTD_createDCtx(),
                                                                     ZSTD_freeDCtx);
  if (context == nullptr) throw std::bad_alloc();
  ZSTD_inBuffer in{packed.data(), packed.size(), 0};
  std::string text;
  for (size_t at = 0; grow(text, at, bytes);) {
    ZSTD_outBuffer out{text.data(), text.size(), at};
    const auto before = in.pos;
    const auto status = ZSTD_decompressStream(context.get(), &out, &in);
    if (ZSTD_isError(status) != 0 || (out.pos == at && in.pos == before))
      refuse_damaged(file, kDamaged);
    at = out.pos;
  }
  return text;
}

}  // namespace

std::string decompress(int64_t codec, std::string_view packed, size_t bytes,
                       const std::string& file) {
  if (codec == kSnappy) return decompress_snappy(packed, bytes, file);
  if (bytes == 0) return {};
  switch (codec) {
    case kUncompressed:
      if (packed.size() != bytes) refuse_damaged(file, "a page of two sizes");
      return std::string(packed);
    case kGzip:
      return decompress_gzip(packed, bytes, file);
    case kZstd:
      return decompress_zstd(packed, bytes, file);
    default:
      break;
  }
  constexpr std::array<const char*, 8> kNames{"", "", "", "LZO", "Brotli", "LZ4", "", "LZ4"};
  const bool is_known = codec >= 0 && codec < static_cast<int64_t>(kNames.size());
  user_error(
      "{}: expected pages that are not compressed, or by Snappy, gzip or Zstandard, got {}; "
      "write it anew with one of them",
      file, is_known ? kNames[static_cast<size_t>(codec)] : "another compression");
}

}  // namespace tessera::records::parquet
