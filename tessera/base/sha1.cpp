#include "tessera/base/sha1.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>

namespace tessera {
namespace {

constexpr size_t kSha1Block = 64;

using Sha1State = std::array<uint32_t, 5>;

void add_sha1_block(Sha1State& state, const char* block) {
  std::array<uint32_t, 80> w;
  for (size_t i = 0; i < 16; ++i) {
    std::memcpy(&w[i], block + 4 * i, sizeof(w[i]));
    w[i] = __builtin_bswap32(w[i]);
  }
  for (size_t i = 16; i < w.size(); ++i) {
    w[i] = std::rotl(w[i - 3] ^ w[i - 8] ^ w[i - 14] ^ w[i - 16], 1);
  }
  auto [a, b, c, d, e] = state;
  for (size_t i = 0; i < w.size(); ++i) {
    const uint32_t choice = (b & c) | (~b & d), parity = b ^ c ^ d;
    const uint32_t majority = (b & c) | (b & d) | (c & d);
    // 2^30 times the square roots of 2, 3, 5 and 10.
    const uint32_t mixed = i < 20   ? choice + 0x5a827999
                           : i < 40 ? parity + 0x6ed9eba1
                           : i < 60 ? majority + 0x8f1bbcdc
                                    : parity + 0xca62c1d6;
    const uint32_t next = std::rotl(a, 5) + mixed + e + w[i];
    e = d, d = c, c = std::rotl(b, 30), b = a, a = next;
  }
  const Sha1State added = {a, b, c, d, e};
  for (size_t i = 0; i < state.size(); ++i) state[i] += added[i];
}

}  // namespace

std::string git_blob_name(std::string_view content) {
  Sha1State state = {0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476, 0xc3d2e1f0};
  // Git sums up a header, which ends with a NUL, and the content.
  std::string begin = fmt::format("blob {}", content.size());
  begin.push_back('\0');
  const uint64_t bits = __builtin_bswap64(uint64_t{begin.size() + content.size()} * 8);
  const size_t taken = std::min(content.size(), kSha1Block - begin.size());
  begin += content.substr(0, taken);
  content.remove_prefix(taken);
  if (begin.size() == kSha1Block) {
    add_sha1_block(state, begin.data());
    begin.clear();
    for (; content.size() >= kSha1Block; content.remove_prefix(kSha1Block)) {
      add_sha1_block(state, content.data());
    }
  }
  // The rest, a one, zeros, and the length in bits at the end of a block.
  std::string last = begin + std::string(content);
  last.push_back('\x80');
  last.resize(last.size() <= kSha1Block - sizeof(bits) ? kSha1Block : 2 * kSha1Block);
  std::memcpy(last.data() + last.size() - sizeof(bits), &bits, sizeof(bits));
  for (size_t i = 0; i < last.size(); i += kSha1Block) add_sha1_block(state, last.data() + i);
  std::string digits;
  for (const uint32_t word : state) digits += fmt::format("{:08x}", word);
  return digits;
}

}  // namespace tessera
