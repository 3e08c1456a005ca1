// SHA-256 (FIPS 180-4), for tests that compare with recorded sums.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace tessera {

/// The first 32 bits of the fractional part of the `root`-th root (2 or 3) of `prime`, by long
/// arithmetic, for which doubles are too short.
constexpr uint32_t sha256_constant(unsigned prime, int root) {
  __extension__ typedef unsigned __int128 Wide;
  // Bit by bit, the largest x with x^root <= prime * 2^(32 root); next^3 < 2^111.
  Wide x = 0;
  for (int bit = 36; bit >= 0; --bit) {
    const auto next = x | static_cast<Wide>(1) << bit;
    const auto power = root == 2 ? next * next : next * next * next;
    if (power <= static_cast<Wide>(prime) << (32 * root)) x = next;
  }
  return static_cast<uint32_t>(x);
}

/// The constants of the first 64 prime numbers.
constexpr std::array<uint32_t, 64> sha256_constants(int root) {
  std::array<unsigned, 64> primes{};
  std::array<uint32_t, 64> constants{};
  size_t count = 0;
  for (unsigned candidate = 2; count < primes.size(); ++candidate) {
    bool is_prime = true;
    for (size_t i = 0; i < count; ++i) is_prime = is_prime && candidate % primes[i] != 0;
    if (!is_prime) continue;
    constants[count] = sha256_constant(candidate, root);
    primes[count++] = candidate;
  }
  return constants;
}

/// Mixes one block of 64 bytes into `state`.
inline void sha256_block(std::array<uint32_t, 8>& state, const unsigned char* block) {
  static constexpr auto constants = sha256_constants(3);
  std::array<uint32_t, 64> words{};
  for (size_t i = 0; i < 64; ++i) {
    if (i < 16) {
      for (size_t byte = 0; byte < 4; ++byte) words[i] = words[i] << 8 | block[4 * i + byte];
      continue;
    }
    const uint32_t a = words[i - 15], b = words[i - 2];
    words[i] = words[i - 16] + words[i - 7] + (std::rotr(a, 7) ^ std::rotr(a, 18) ^ (a >> 3)) +
               (std::rotr(b, 17) ^ std::rotr(b, 19) ^ (b >> 10));
  }
  auto [a, b, c, d, e, f, g, h] = state;
  for (size_t i = 0; i < 64; ++i) {
    const uint32_t first = h + (std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25)) +
                           ((e & f) ^ (~e & g)) + constants[i] + words[i];
    const uint32_t second =
        (std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
    h = g, g = f, f = e, e = d + first, d = c, c = b, b = a, a = first + second;
  }
  const std::array<uint32_t, 8> mixed{a, b, c, d, e, f, g, h};
  for (size_t i = 0; i < 8; ++i) state[i] += mixed[i];
}

/// Of the bytes, as 64 hexadecimal digits.
inline std::string sha256(std::span<const std::byte> bytes) {
  static constexpr auto constants = sha256_constants(2);
  std::array<uint32_t, 8> state{};
  for (size_t i = 0; i < state.size(); ++i) state[i] = constants[i];
  std::vector<unsigned char> padded;
  for (const auto byte : bytes) padded.push_back(static_cast<unsigned char>(byte));
  padded.push_back(0x80);
  while (padded.size() % 64 != 56) padded.push_back(0);
  const uint64_t bits = bytes.size() * 8;
  for (int shift = 56; shift >= 0; shift -= 8)
    padded.push_back(static_cast<unsigned char>(bits >> shift));
  for (size_t i = 0; i < padded.size(); i += 64) sha256_block(state, &padded[i]);
  std::string text;
  for (const uint32_t word : state) {
    for (int shift = 28; shift >= 0; shift -= 4) text += "0123456789abcdef"[word >> shift & 15];
  }
  return text;
}

}  // namespace tessera
