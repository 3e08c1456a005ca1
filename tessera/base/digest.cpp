#include "tessera/base/digest.h"

// The functions of a single algorithm: of the static library they bring in some 40 KiB, and those
// of any algorithm (EVP) several MiB.
#define OPENSSL_API_COMPAT 0x10100000L
#include <fmt/format.h>
#include <openssl/sha.h>

#include <array>
#include <initializer_list>

namespace tessera {
namespace {

using Sha256Sum = std::array<unsigned char, SHA256_DIGEST_LENGTH>;

Sha256Sum sha256_sum(std::initializer_list<std::string_view> parts) {
  SHA256_CTX state;
  Sha256Sum sum;
  SHA256_Init(&state);
  for (const auto part : parts) SHA256_Update(&state, part.data(), part.size());
  SHA256_Final(sum.data(), &state);
  return sum;
}

template <typename Sum>
std::string_view bytes_of_sum(const Sum& sum) {
  return {reinterpret_cast<const char*>(sum.data()), sum.size()};
}

template <typename Sum>
std::string in_hexadecimal(const Sum& sum) {
  std::string digits;
  for (const unsigned char byte : sum) digits += fmt::format("{:02x}", byte);
  return digits;
}

}  // namespace

std::string sha256(std::string_view bytes) { return in_hexadecimal(sha256_sum({bytes})); }

std::string hmac_sha256(std::string_view key, std::string_view text) {
  std::string padded(key.size() > SHA256_CBLOCK ? bytes_of_sum(sha256_sum({key})) : key);
  padded.resize(SHA256_CBLOCK);
  const auto masked = [&](char mask) {
    auto mixed = padded;
    for (char& c : mixed) c = static_cast<char>(c ^ mask);
    return mixed;
  };
  constexpr char kInner = 0x36, kOuter = 0x5c;
  const auto inner = sha256_sum({masked(kInner), text});
  return in_hexadecimal(sha256_sum({masked(kOuter), bytes_of_sum(inner)}));
}

std::string git_blob_name(std::string_view content) {
  // Git sums up a header, which ends with a NUL, and the content.
  std::string header = fmt::format("blob {}", content.size());
  header.push_back('\0');
  SHA_CTX state;
  std::array<unsigned char, SHA_DIGEST_LENGTH> sum;
  SHA1_Init(&state);
  SHA1_Update(&state, header.data(), header.size());
  SHA1_Update(&state, content.data(), content.size());
  SHA1_Final(sum.data(), &state);
  return in_hexadecimal(sum);
}

}  // namespace tessera
