// What the driver saves, for it and for those who check: tensors whose bits are a function of
// (tensor, step, position).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "tessera/checkpoint/tensor_source.h"

namespace tessera::faults {

struct NamedInfo {
  std::string name;
  checkpoint::TensorInfo info;
};

/// 11 MB: two parts of 8 MiB, the second one not full.
inline std::vector<NamedInfo> tensors() {
  using checkpoint::DType;
  return {{"embed.weight", {DType::f32, {640, 2048}}},
          {"optimizer/exp_avg/embed.weight", {DType::bf16, {640, 2048}}},
          {"head.weight", {DType::bf16, {640, 2047}}},
          {"norm.weight", {DType::f32, {1021}}},
          {"tokens_seen", {DType::i64, {1}}}};
}

/// Bytes `begin` .. of tensor number `tensor` at a step; `begin` a multiple of 8.
inline void fill(size_t tensor, int64_t step, int64_t begin, std::span<std::byte> bytes) {
  const uint64_t seed = static_cast<uint64_t>(step) * 1000003 + tensor * 7919 + 1;
  for (size_t i = 0; i < bytes.size(); i += sizeof(uint64_t)) {
    const uint64_t word = (seed + static_cast<uint64_t>(begin) + i) * 0x9e3779b97f4a7c15;
    std::memcpy(&bytes[i], &word, std::min(sizeof(word), bytes.size() - i));
  }
}

}  // namespace tessera::faults
