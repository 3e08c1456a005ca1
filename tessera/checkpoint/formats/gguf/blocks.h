// How GGUF stores numbers: plain ones, and blocks of small integers with scales.
//
//   Q8_0  32 values: f16 scale, 32 int8
//   Q4_0  32 values: f16 scale, 16 bytes; byte i holds value i below and value i + 16 above
//   Q5_0  32 values: f16 scale, 4 bytes of fifth bits, 16 bytes as in Q4_0
//   Q5_1  32 values: f16 scale and f16 minimum, then as Q5_0
//   Q4_K 256 values: f16 scale and f16 minimum, 12 bytes with 6-bit scales and minima of 8 groups, 128 bytes
//   Q5_K 256 values: as Q4_K, with 32 bytes of fifth bits before the 128
//   Q6_K 256 values: 128 bytes of low and 64 of high bits, int8 scales of 16 groups, f16 scale
//
// Format: https://github.com/ggml-org/ggml (docs/gguf.md; src/ggml-common.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "tessera/checkpoint/dtype.h"

namespace tessera::checkpoint {

/// Numbers as the format has them.
enum class GgmlType : uint32_t {
  f32 = 0,
  f16 = 1,
  q4_0 = 2,
  q5_0 = 6,
  q5_1 = 7,
  q8_0 = 8,
  q4_k = 12,
  q5_k = 13,
  q6_k = 14,
  i8 = 24,
  i16 = 25,
  i32 = 26,
  i64 = 27,
  f64 = 28,
  bf16 = 30
};

struct GgmlTypeInfo {
  GgmlType type;
  std::string_view name;
  int64_t block_values, block_bytes;
  DType dtype;  ///< in which its values are read: f32 for blocks
};

/// None: a type that is not read here.
const GgmlTypeInfo* find_ggml_type(uint32_t number);
const GgmlTypeInfo& ggml_type_info(GgmlType type);

/// Whole blocks into values. Exact: as the package `gguf` has them.
void dequantize(GgmlType type, std::span<const std::byte> blocks, std::span<float> values);

/// Values into whole blocks, on all cores if there are many; the bytes are those of ggml's reference.
/// Assertion: a part of a block.
void quantize(GgmlType type, std::span<const float> values, std::span<std::byte> blocks);

// Parts of blocks.
float read_f16(const std::byte* at);
void write_f16(float value, std::byte* at);

/// 6 bits of scale and of minimum of one of the 8 groups of Q4_K and Q5_K. Those of the last four are divided: 4 bits
/// stand together in the last four bytes, 2 above those of the first groups.
struct GroupScale {
  unsigned scale, minimum;
};
GroupScale group_scale(const std::byte* packed, int group);
void put_group_scale(const GroupScale& own, int group, std::byte* packed);  ///< into zeros

}  // namespace tessera::checkpoint
