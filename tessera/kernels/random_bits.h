// The random numbers of dropout and of a router's jitter: functions of a key and a position alone.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>

#include "tessera/kernels/flat.h"

namespace tessera::kernels {

/// 32 bits for each of `positions` (int64, counted from 0 whatever the key's first_position), as int64 on their
/// device: those that `drop` draws there.
at::Tensor random_bits(const at::Tensor& positions, const DropoutKey& key);

/// The same for each element of `like`, whose first has the key's first_position.
at::Tensor random_bits_like(const at::Tensor& like, const DropoutKey& key);

/// Numbers of a standard Gumbel distribution, float32, made of those.
at::Tensor gumbel_noise(const at::Tensor& like, const DropoutKey& key);

/// The bits of one position, for loops on the CPU; `key` is random_key of a DropoutKey.
inline uint32_t random_bits_at(const std::array<uint32_t, 2>& key, int64_t position) {
  const auto mixed = [](uint32_t x) {
    x = (x ^ (x >> 16)) * 0x7feb352du;
    x = (x ^ (x >> 15)) * 0x846ca68bu;
    return x ^ (x >> 16);
  };
  const auto bits = static_cast<uint64_t>(position);
  const auto low = mixed(static_cast<uint32_t>(bits) ^ key[0]);
  return mixed(low + static_cast<uint32_t>(bits >> 32) * 0x9e3779b1u + key[1]);
}

}  // namespace tessera::kernels
