// Numbers that are kept on drives, for whoever needs them seldom (checkpoints).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

namespace tessera::offload {

/// Bytes from `begin` on, in any pieces, one caller at a time. Return when they are moved.
struct StoredBytes {
  std::function<void(int64_t begin, std::span<std::byte> to)> read;
  std::function<void(int64_t begin, std::span<const std::byte> from)> write;
};

}  // namespace tessera::offload
