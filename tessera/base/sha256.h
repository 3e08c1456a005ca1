// SHA-256 (FIPS 180-4): by it the Hugging Face Hub names large files, and tests compare with
// recorded sums.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace tessera {

std::string sha256(std::string_view bytes);  ///< 64 lower-case hexadecimal digits

/// HMAC (RFC 2104) with SHA-256: 64 lower-case hexadecimal digits that nobody makes without `key`.
std::string hmac_sha256(std::string_view key, std::string_view text);

inline std::string sha256(std::span<const std::byte> bytes) {
  return sha256(std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
}

}  // namespace tessera
