// How a Parquet file's pages are compressed.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace tessera::records::parquet {

/// parquet.thrift's CompressionCodec.
enum Codec : int64_t { kUncompressed, kSnappy, kGzip, kLzo, kBrotli, kLz4, kZstd, kLz4Raw };

/// `packed` as it was, which are `bytes` bytes. Memory grows with what is there, not with what the
/// file says. UserError that names `file`: damaged, or a codec that is not read.
std::string decompress(int64_t codec, std::string_view packed, size_t bytes,
                       const std::string& file);

}  // namespace tessera::records::parquet
