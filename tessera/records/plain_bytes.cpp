#include "tessera/records/plain_bytes.h"

#include <zlib.h>
#include <zstd.h>

#include <memory>
#include <new>

#include "tessera/base/error.h"

namespace tessera::records {

PlainBytes::PlainBytes(const std::filesystem::path& path, Compression compression)
    : file_(path), compression_(compression) {
  constexpr size_t kPackedBytes = size_t{64} << 10;
  if (compression == Compression::none) return;
  packed_.resize(kPackedBytes);
  if (compression == Compression::gzip) {
    auto stream = std::make_unique<z_stream>();
    constexpr int kWithGzipHeader = 16;
    if (::inflateInit2(stream.get(), MAX_WBITS + kWithGzipHeader) != Z_OK) throw std::bad_alloc();
    gzip_ = stream.release();
  } else {
    zstd_ = ::ZSTD_createDCtx();
    if (zstd_ == nullptr) throw std::bad_alloc();
  }
}

PlainBytes::~PlainBytes() {
  if (gzip_ != nullptr) ::inflateEnd(gzip_);
  delete gzip_;
  ::ZSTD_freeDCtx(zstd_);
}

size_t PlainBytes::read(std::span<char> to) {
  size_t got = 0;
  if (compression_ == Compression::none) {
    got = file_.read(to);
  } else {
    // Some input makes no output: headers, empty streams.
    while (got == 0 && (packed_at_ < packed_end_ || is_within_ || refill()))
      got = gzip_ != nullptr ? inflate_some(to) : decompress_some(to);
  }
  if (got == 0) file_.check_unchanged();
  return got;
}

bool PlainBytes::refill() {
  packed_at_ = 0;
  packed_end_ = file_.read(packed_);
  return packed_end_ > 0;
}

size_t PlainBytes::inflate_some(std::span<char> to) {
  const bool has_more = packed_at_ < packed_end_ || refill();
  gzip_->next_in = reinterpret_cast<Bytef*>(packed_.data() + packed_at_);
  gzip_->avail_in = static_cast<uInt>(packed_end_ - packed_at_);
  gzip_->next_out = reinterpret_cast<Bytef*>(to.data());
  gzip_->avail_out = static_cast<uInt>(to.size());
  const int result = ::inflate(gzip_, Z_NO_FLUSH);
  packed_at_ = packed_end_ - gzip_->avail_in;
  is_within_ = result != Z_STREAM_END;
  const size_t got = to.size() - gzip_->avail_out;
  if (result == Z_STREAM_END) {  // one more stream may follow
    ::inflateReset(gzip_);
  } else if (result == Z_MEM_ERROR) {
    throw std::bad_alloc();
  } else if (result != Z_OK && result != Z_BUF_ERROR) {
    refuse("gzip", gzip_->msg == nullptr ? "damage" : gzip_->msg);
  } else if (!has_more && got == 0) {
    refuse("gzip", "an end in the middle of it");
  }
  return got;
}

size_t PlainBytes::decompress_some(std::span<char> to) {
  const bool has_more = packed_at_ < packed_end_ || refill();
  ZSTD_inBuffer in{packed_.data() + packed_at_, packed_end_ - packed_at_, 0};
  ZSTD_outBuffer out{to.data(), to.size(), 0};
  const size_t result = ::ZSTD_decompressStream(zstd_, &out, &in);
  packed_at_ += in.pos;
  if (::ZSTD_isError(result) != 0) refuse("zstd", ::ZSTD_getErrorName(result));
  is_within_ = result != 0;
  if (!has_more && out.pos == 0 && is_within_) refuse("zstd", "an end in the middle of it");
  return out.pos;
}

void PlainBytes::refuse(const char* kind, const char* why) const {
  file_.check_unchanged();
  user_error("{}: expected whole {} data, as its name says, got {}; fetch or pack it again",
             path().string(), kind, why);
}

}  // namespace tessera::records
