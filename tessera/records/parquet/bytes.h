// Bytes of a Parquet file, taken one part after the other.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "tessera/base/error.h"

namespace tessera::records::parquet {

[[noreturn]] inline void refuse_damaged(const std::string& file, std::string_view what) {
  user_error("{}: expected a whole Parquet file, got {}; fetch it again", file, what);
}

/// Every read is checked: UserError that names `file` if there are fewer bytes.
class Bytes {
 public:
  Bytes() = default;
  Bytes(std::string_view left, const std::string& file) : left_(left), file_(&file) {}

  size_t size() const { return left_.size(); }
  std::string_view left() const { return left_; }
  const std::string& file() const { return *file_; }

  std::string_view take(uint64_t bytes) {
    if (bytes > left_.size()) refuse_damaged(*file_, "a part that ends too soon");
    const auto taken = left_.substr(0, bytes);
    left_.remove_prefix(bytes);
    return taken;
  }
  Bytes part(uint64_t bytes) { return {take(bytes), *file_}; }

  /// A number as the file has it: little-endian.
  template <typename T>
  T fixed() {
    static_assert(std::endian::native == std::endian::little);
    T value;
    std::memcpy(&value, take(sizeof(T)).data(), sizeof(T));
    return value;
  }

  /// LEB128 with at most 64 bits.
  uint64_t varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const auto byte = fixed<uint8_t>();
      value |= uint64_t{byte & 0x7FU} << shift;
      if (byte < 0x80) return value;
    }
    refuse_damaged(*file_, "a number of more than 64 bits");
  }
  int64_t zigzag() {
    const auto value = varint();
    return static_cast<int64_t>(value >> 1 ^ (0 - (value & 1)));
  }

 private:
  std::string_view left_;
  const std::string* file_ = nullptr;
};

}  // namespace tessera::records::parquet
