#include "tessera/checkpoint/checksum.h"

#include <fmt/format.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <charconv>

namespace tessera::checkpoint {
namespace {

constexpr size_t kHexDigits = 16;

}  // namespace

Checksum checksum(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

void append_checksums(std::span<const std::byte> bytes, std::vector<Checksum>& checksums) {
  constexpr auto kBlock = static_cast<size_t>(kBlockBytes);
  for (size_t begin = 0; begin < bytes.size(); begin += kBlock) {
    checksums.push_back(checksum(bytes.subspan(begin, std::min(kBlock, bytes.size() - begin))));
  }
}

std::string to_hex(Checksum checksum) { return fmt::format("{:016x}", checksum); }

bool from_hex(std::string_view text, std::vector<Checksum>& checksums) {
  if (text.size() % kHexDigits != 0) return false;
  for (; !text.empty(); text.remove_prefix(kHexDigits)) {
    Checksum value = 0;
    const char* end = text.data() + kHexDigits;
    const auto [stop, error] = std::from_chars(text.data(), end, value, 16);
    if (error != std::errc() || stop != end) return false;
    checksums.push_back(value);
  }
  return true;
}

}  // namespace tessera::checkpoint
