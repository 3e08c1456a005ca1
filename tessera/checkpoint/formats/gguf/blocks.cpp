#include "tessera/checkpoint/formats/gguf/blocks.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cmath>
#include <cstring>
#include <thread>
#include <vector>

#include "tessera/checkpoint/convert_dtype.h"
#include "tessera/checkpoint/formats/gguf/k_quants.h"

namespace tessera::checkpoint {
namespace {

constexpr std::array kGgmlTypes{GgmlTypeInfo{GgmlType::f32, "F32", 1, 4, DType::f32},
                                GgmlTypeInfo{GgmlType::f16, "F16", 1, 2, DType::f16},
                                GgmlTypeInfo{GgmlType::q4_0, "Q4_0", 32, 18, DType::f32},
                                GgmlTypeInfo{GgmlType::q5_0, "Q5_0", 32, 22, DType::f32},
                                GgmlTypeInfo{GgmlType::q5_1, "Q5_1", 32, 24, DType::f32},
                                GgmlTypeInfo{GgmlType::q8_0, "Q8_0", 32, 34, DType::f32},
                                GgmlTypeInfo{GgmlType::q4_k, "Q4_K", 256, 144, DType::f32},
                                GgmlTypeInfo{GgmlType::q5_k, "Q5_K", 256, 176, DType::f32},
                                GgmlTypeInfo{GgmlType::q6_k, "Q6_K", 256, 210, DType::f32},
                                GgmlTypeInfo{GgmlType::i8, "I8", 1, 1, DType::i8},
                                GgmlTypeInfo{GgmlType::i16, "I16", 1, 2, DType::i16},
                                GgmlTypeInfo{GgmlType::i32, "I32", 1, 4, DType::i32},
                                GgmlTypeInfo{GgmlType::i64, "I64", 1, 8, DType::i64},
                                GgmlTypeInfo{GgmlType::f64, "F64", 1, 8, DType::f64},
                                GgmlTypeInfo{GgmlType::bf16, "BF16", 1, 2, DType::bf16}};

unsigned bits(std::byte byte) { return std::to_integer<unsigned>(byte); }

void read_q8_0(const std::byte* block, float* values) {
  const float scale = read_f16(block);
  for (int i = 0; i < 32; ++i)
    values[i] = scale * static_cast<float>(static_cast<int8_t>(bits(block[2 + i])));
}

void read_q4_0(const std::byte* block, float* values) {
  const float scale = read_f16(block);
  for (int i = 0; i < 16; ++i) {
    const unsigned both = bits(block[2 + i]);
    values[i] = scale * static_cast<float>(static_cast<int>(both & 15) - 8);
    values[i + 16] = scale * static_cast<float>(static_cast<int>(both >> 4) - 8);
  }
}

/// Number `i` of Q5_0 and Q5_1, whose fifth bits begin at `at`.
unsigned five_bits(const std::byte* at, int i) {
  const unsigned low = i < 16 ? bits(at[4 + i]) & 15 : bits(at[4 + i - 16]) >> 4;
  return low | (bits(at[i / 8]) >> (i % 8) & 1) << 4;
}

void read_q5_0(const std::byte* block, float* values) {
  const float scale = read_f16(block);
  for (int i = 0; i < 32; ++i)
    values[i] = scale * static_cast<float>(static_cast<int>(five_bits(block + 2, i)) - 16);
}

void read_q5_1(const std::byte* block, float* values) {
  const float scale = read_f16(block), minimum = read_f16(block + 2);
  for (int i = 0; i < 32; ++i)
    values[i] = scale * static_cast<float>(five_bits(block + 4, i)) + minimum;
}

/// Q4_K, and Q5_K, whose fifth bits stand before the others.
template <bool kFifths>
void read_lines(const std::byte* block, float* values) {
  const float scale = read_f16(block), minimum = read_f16(block + 2);
  const auto *fifths = block + 16, *low = fifths + (kFifths ? 32 : 0);
  for (int group = 0; group < 8; ++group) {
    const auto own = group_scale(block + 4, group);
    const float times = scale * static_cast<float>(own.scale);
    const float less = minimum * static_cast<float>(own.minimum);
    const auto* bytes = low + group / 2 * 32;
    for (int i = 0; i < 32; ++i) {
      unsigned number = group % 2 == 0 ? bits(bytes[i]) & 15 : bits(bytes[i]) >> 4;
      if constexpr (kFifths) number |= (bits(fifths[i]) >> group & 1) << 4;
      values[group * 32 + i] = times * static_cast<float>(number) - less;
    }
  }
}

void read_q6_k(const std::byte* block, float* values) {
  const auto *low = block, *high = block + 128, *scales = block + 192;
  const float scale = read_f16(block + 208);
  for (int i = 0; i < 256; ++i) {
    const int half = i / 128, quarter = i % 128 / 32, column = i % 32;
    const unsigned lows = bits(low[half * 64 + quarter % 2 * 32 + column]);
    const unsigned highs = bits(high[half * 32 + column]) >> (2 * quarter) & 3;
    const unsigned number = (quarter < 2 ? lows & 15 : lows >> 4) | highs << 4;
    const auto group = static_cast<int8_t>(bits(scales[i / 16]));
    values[i] =
        scale * static_cast<float>(group) * static_cast<float>(static_cast<int>(number) - 32);
  }
}

float inverse(float scale) { return scale == 0 ? 0 : 1 / scale; }

void write_q8_0(const float* values, std::byte* block) {
  float largest = 0;
  for (int i = 0; i < 32; ++i) largest = std::max(largest, std::abs(values[i]));
  const float scale = largest / 127, times = inverse(scale);
  write_f16(scale, block);
  for (int i = 0; i < 32; ++i)
    block[2 + i] = static_cast<std::byte>(static_cast<int8_t>(std::round(values[i] * times)));
}

/// 32 whole numbers of 0 to 2 * half - 1: the value of largest magnitude, the first of several, becomes
/// -half. Product and sum are rounded to float32 one after the other, as ggml and the package `gguf`
/// have it where the processor does not do both at once. Writes the scale.
std::array<unsigned, 32> centred_numbers(const float* values, int half, std::byte* block) {
  float extreme = 0;
  for (int i = 0; i < 32; ++i) {
    if (std::abs(values[i]) > std::abs(extreme)) extreme = values[i];
  }
  const float scale = extreme / static_cast<float>(-half), times = inverse(scale);
  write_f16(scale, block);
  std::array<unsigned, 32> numbers{};
  for (int i = 0; i < 32; ++i) {
    const float shifted = values[i] * times + (static_cast<float>(half) + 0.5F);
    numbers[static_cast<size_t>(i)] =
        static_cast<unsigned>(std::clamp(shifted, 0.0F, static_cast<float>(2 * half - 1)));
  }
  return numbers;
}

void write_q4_0(const float* values, std::byte* block) {
  const auto numbers = centred_numbers(values, 8, block);
  for (size_t i = 0; i < 16; ++i)
    block[2 + i] = static_cast<std::byte>(numbers[i] | numbers[i + 16] << 4);
}

/// Numbers of five bits as five_bits reads them.
void put_five_bits(const std::array<unsigned, 32>& numbers, std::byte* at) {
  for (size_t i = 0; i < 16; ++i)
    at[4 + i] = static_cast<std::byte>((numbers[i] & 15) | (numbers[i + 16] & 15) << 4);
  std::memset(at, 0, 4);
  for (size_t i = 0; i < 32; ++i) at[i / 8] |= static_cast<std::byte>(numbers[i] >> 4 << (i % 8));
}

void write_q5_0(const float* values, std::byte* block) {
  put_five_bits(centred_numbers(values, 16, block), block + 2);
}

void write_q5_1(const float* values, std::byte* block) {
  const auto [least, most] = std::minmax_element(values, values + 32);
  const float scale = (*most - *least) / 31, times = inverse(scale);
  write_f16(scale, block), write_f16(*least, block + 2);
  std::array<unsigned, 32> numbers{};
  for (size_t i = 0; i < 32; ++i) {
    // NOLINTNEXTLINE(bugprone-incorrect-roundings): ggml's rounding, to the bit
    numbers[i] = static_cast<unsigned>((values[i] - *least) * times + 0.5F);
  }
  put_five_bits(numbers, block + 4);
}

/// How a type's blocks are read and written; null: values that stand alone.
struct BlockCode {
  void (*read)(const std::byte* block, float* values);
  void (*write)(const float* values, std::byte* block);
};
BlockCode block_code(GgmlType type) {
  switch (type) {
    case GgmlType::q4_0:
      return {read_q4_0, write_q4_0};
    case GgmlType::q5_0:
      return {read_q5_0, write_q5_0};
    case GgmlType::q5_1:
      return {read_q5_1, write_q5_1};
    case GgmlType::q8_0:
      return {read_q8_0, write_q8_0};
    case GgmlType::q4_k:
      return {read_lines<false>, write_q4_k};
    case GgmlType::q5_k:
      return {read_lines<true>, write_q5_k};
    case GgmlType::q6_k:
      return {read_q6_k, write_q6_k};
    default:
      return {};
  }
}

}  // namespace

const GgmlTypeInfo* find_ggml_type(uint32_t number) {
  const auto found =
      std::ranges::find(kGgmlTypes, static_cast<GgmlType>(number), &GgmlTypeInfo::type);
  return found == kGgmlTypes.end() ? nullptr : &*found;
}

const GgmlTypeInfo& ggml_type_info(GgmlType type) {
  return *find_ggml_type(static_cast<uint32_t>(type));
}

float read_f16(const std::byte* at) {
  float value = 0;
  convert_values({at, 2}, DType::f16, std::as_writable_bytes(std::span(&value, 1)), DType::f32);
  return value;
}

void write_f16(float value, std::byte* at) {
  convert_values(std::as_bytes(std::span(&value, 1)), DType::f32, {at, 2}, DType::f16);
}

GroupScale group_scale(const std::byte* packed, int group) {
  const auto at = [&](int i) { return bits(packed[i]); };
  if (group < 4) return {at(group) & 63, at(group + 4) & 63};
  return {(at(group + 4) & 15) | (at(group - 4) >> 6 << 4),
          (at(group + 4) >> 4) | (at(group) >> 6 << 4)};
}

void put_group_scale(const GroupScale& own, int group, std::byte* packed) {
  if (group < 4) {
    packed[group] |= static_cast<std::byte>(own.scale);
    packed[group + 4] |= static_cast<std::byte>(own.minimum);
  } else {
    packed[group + 4] = static_cast<std::byte>((own.scale & 15) | (own.minimum & 15) << 4);
    packed[group - 4] |= static_cast<std::byte>(own.scale >> 4 << 6);
    packed[group] |= static_cast<std::byte>(own.minimum >> 4 << 6);
  }
}

void dequantize(GgmlType type, std::span<const std::byte> blocks, std::span<float> values) {
  const auto& info = ggml_type_info(type);
  const auto code = block_code(type);
  const auto count = blocks.size() / static_cast<size_t>(info.block_bytes);
  assert(code.read != nullptr && values.size() == count * static_cast<size_t>(info.block_values));
  for (size_t i = 0; i < count; ++i)
    code.read(blocks.data() + i * static_cast<size_t>(info.block_bytes),
              values.data() + i * static_cast<size_t>(info.block_values));
}

void quantize(GgmlType type, std::span<const float> values, std::span<std::byte> blocks) {
  constexpr size_t kLeastOfThread = size_t{1} << 15;  // values, a millisecond or two
  const auto block_bytes = static_cast<size_t>(ggml_type_info(type).block_bytes);
  const auto block_values = static_cast<size_t>(ggml_type_info(type).block_values);
  const auto code = block_code(type);
  const size_t count = values.size() / block_values;
  assert(code.write != nullptr && values.size() % block_values == 0 &&
         blocks.size() == count * block_bytes);
  const auto write = [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i)
      code.write(values.data() + i * block_values, blocks.data() + i * block_bytes);
  };
  const size_t parts = std::clamp<size_t>(values.size() / kLeastOfThread, 1,
                                          std::max(1U, std::thread::hardware_concurrency()));
  std::vector<std::jthread> threads;
  for (size_t part = 1; part < parts; ++part)
    threads.emplace_back(write, part * count / parts, (part + 1) * count / parts);
  write(0, count / parts);
}

}  // namespace tessera::checkpoint
