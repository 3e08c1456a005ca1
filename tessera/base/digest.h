// Names of contents: SHA-256 and SHA-1 (FIPS 180-4), by OpenSSL.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace tessera {

/// 64 lower-case hexadecimal digits: by it the Hugging Face Hub names large files.
std::string sha256(std::string_view bytes);

inline std::string sha256(std::span<const std::byte> bytes) {
  return sha256(std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
}

/// HMAC (RFC 2104) with SHA-256: 64 lower-case hexadecimal digits that nobody makes without `key`.
std::string hmac_sha256(std::string_view key, std::string_view text);

/// The name that Git gives a file of this content, by SHA-1: 40 lower-case hexadecimal digits. It
/// finds what was cut or changed by accident; it is no proof against somebody who makes two
/// contents of one name.
std::string git_blob_name(std::string_view content);

}  // namespace tessera
