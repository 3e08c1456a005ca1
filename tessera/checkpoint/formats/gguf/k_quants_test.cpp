#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "tessera/checkpoint/formats/gguf/blocks.h"
#include "tessera/checkpoint/formats/gguf/types.h"

namespace tessera::checkpoint {
namespace {

std::vector<float> drawn_values(size_t count) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (auto& value : values) value = normal(random);
  return values;
}

std::vector<float> after(GgmlType type, const std::vector<float>& values) {
  const auto& info = ggml_type_info(type);
  std::vector<std::byte> blocks(values.size() / static_cast<size_t>(info.block_values) *
                                static_cast<size_t>(info.block_bytes));
  quantize(type, values, blocks);
  std::vector<float> result(values.size());
  dequantize(type, blocks, result);
  return result;
}

double distance(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += std::pow(double{a[i]} - double{b[i]}, 2), norm += std::pow(double{a[i]}, 2);
  }
  return std::sqrt(difference / norm);
}

/// Each group's numbers evenly between its least and its largest value, or between the largest magnitude
/// and its negative, in exact scales.
std::vector<float> evenly(const std::vector<float>& values, size_t group, float steps,
                          bool symmetric) {
  std::vector<float> result;
  for (size_t begin = 0; begin < values.size(); begin += group) {
    const auto first = values.begin() + static_cast<std::ptrdiff_t>(begin);
    auto [least, most] =
        std::ranges::minmax(std::vector<float>(first, first + static_cast<std::ptrdiff_t>(group)));
    if (symmetric) most = std::max(most, -least), least = -most;
    const float scale = (most - least) / steps;
    for (size_t i = begin; i < begin + group; ++i)
      result.push_back(least + scale * std::round((values[i] - least) / scale));
  }
  return result;
}

TEST(KQuantsTest, AreCloserThanPlainRounding) {
  const auto values = drawn_values(size_t{1} << 16);
  // Groups' own scales have 6 bits here, and are exact there.
  EXPECT_LT(distance(values, after(GgmlType::q4_k, values)),
            distance(values, evenly(values, 32, 15, false)));
  EXPECT_LT(distance(values, after(GgmlType::q6_k, values)),
            distance(values, evenly(values, 16, 62, true)));
  EXPECT_LT(distance(values, after(GgmlType::q5_k, values)),
            distance(values, evenly(values, 32, 31, false)));
  EXPECT_LT(distance(values, after(GgmlType::q4_k, values)), 0.072);
  EXPECT_LT(distance(values, after(GgmlType::q5_k, values)), 0.037);
  EXPECT_LT(distance(values, after(GgmlType::q6_k, values)), 0.018);
  for (const auto type : {GgmlType::q5_0, GgmlType::q5_1})
    EXPECT_LT(distance(values, after(type, values)), 0.06);
}

TEST(KQuantsTest, ConstantsAndZerosComeBack) {
  for (const auto type :
       {GgmlType::q4_k, GgmlType::q5_k, GgmlType::q6_k, GgmlType::q5_0, GgmlType::q5_1}) {
    EXPECT_EQ(after(type, std::vector<float>(256, 0)), std::vector<float>(256, 0));
    for (const float value : {0.5F, -0.5F}) {
      const std::vector<float> values(256, value);
      EXPECT_LT(distance(values, after(type, values)), 0.002) << ggml_type_info(type).name << value;
    }
    // One group of zeros beside large values.
    auto values = drawn_values(256);
    std::fill_n(values.begin() + 32, 32, 0.0F);
    const auto back = after(type, values);
    EXPECT_TRUE(std::all_of(back.begin() + 32, back.begin() + 64, [](float v) { return v == 0; }));
  }
}

TEST(KQuantsTest, FifthBitsStandWhereTheFormatSays) {
  // A group's values are 0 to 31; only those of group 5 are upside down.
  std::vector<float> values(256);
  for (size_t i = 0; i < 256; ++i)
    values[i] = static_cast<float>(i / 32 == 5 ? 31 - i % 32 : i % 32);
  std::vector<std::byte> block(176);
  quantize(GgmlType::q5_k, values, block);
  for (size_t i = 0; i < 32; ++i) {
    EXPECT_EQ(block[16 + i], i < 16 ? std::byte{0x20} : std::byte{0xdf}) << i;  // bit g: of group g
    EXPECT_EQ(block[48 + i], static_cast<std::byte>(i % 16 * 0x11)) << i;
    EXPECT_EQ(block[48 + 64 + i], static_cast<std::byte>(i % 16 | (15 - i % 16) << 4)) << i;
  }
  block.resize(24);
  quantize(GgmlType::q5_1, std::span(values).first(32), block);
  EXPECT_EQ(block[2], std::byte{0});
  EXPECT_EQ(block[4], std::byte{0});
  EXPECT_EQ(block[6], std::byte{0xff});
  for (size_t i = 0; i < 16; ++i) EXPECT_EQ(block[8 + i], static_cast<std::byte>(i * 0x11)) << i;
}

TEST(KQuantsTest, ThreadsDivideBlocksWithoutATrace) {
  const auto values = drawn_values(size_t{1} << 17);
  std::vector<std::byte> whole(values.size() / 256 * 144), one(144);
  quantize(GgmlType::q4_k, values, whole);
  for (size_t block = 0; block < values.size() / 256; ++block) {
    quantize(GgmlType::q4_k, std::span(values).subspan(block * 256, 256), one);
    ASSERT_TRUE(std::equal(one.begin(), one.end(), whole.data() + block * 144)) << block;
  }
}

TEST(GgufTypeTest, FewValuesAreNeverOfFourBits) {
  const GgufMix mix{GgufFileType::q4_k_m, 80, false, true};
  const TensorInfo whole{DType::f32, {8, 512}}, of_32{DType::f32, {8, 96}};
  EXPECT_EQ(gguf_type("blk.9.attn_v.weight", whole, mix), GgmlType::q6_k);
  EXPECT_EQ(gguf_type("blk.10.attn_v.weight", whole, mix), GgmlType::q5_k);
  EXPECT_EQ(gguf_type("blk.12.attn_v.weight", whole, mix), GgmlType::q6_k);
  EXPECT_EQ(gguf_type("blk.10.attn_v.weight", of_32, mix), GgmlType::q5_1);
  EXPECT_EQ(gguf_type("blk.10.ffn_down.weight", whole, mix), GgmlType::q4_k);
  EXPECT_EQ(gguf_type("blk.10.attn_v.weight", whole, {mix.file, 80, false}), GgmlType::q4_k);
}

TEST(GgufTypeTest, MixesAsLlamaCppDoes) {
  const GgufMix mix{.file = GgufFileType::q4_k_m, .num_layers = 16, .tied = false};
  const TensorInfo whole{DType::f32, {8, 512}}, of_32{DType::f32, {8, 96}}, odd{DType::f32, {8, 9}};
  std::vector<int> more;
  for (int i = 0; i < 16; ++i) {
    const auto block = "blk." + std::to_string(i);
    EXPECT_EQ(gguf_type(block + ".attn_q.weight", whole, mix), GgmlType::q4_k);
    const auto down = gguf_type(block + ".ffn_down.weight", whole, mix);
    EXPECT_EQ(gguf_type(block + ".attn_v.weight", whole, mix), down);
    if (down == GgmlType::q6_k) more.push_back(i);
  }
  EXPECT_EQ(more, (std::vector{0, 1, 4, 7, 10, 13, 14, 15}));
  EXPECT_EQ(gguf_type("output.weight", whole, mix), GgmlType::q6_k);
  EXPECT_EQ(gguf_type("output.weight", of_32, mix), GgmlType::q8_0);
  EXPECT_EQ(gguf_type("token_embd.weight", whole, mix), GgmlType::q4_k);
  EXPECT_EQ(gguf_type("token_embd.weight", whole, {mix.file, 16, true}), GgmlType::q6_k);
  EXPECT_EQ(gguf_type("blk.2.ffn_up.weight", of_32, mix), GgmlType::q5_0);
  EXPECT_EQ(gguf_type("blk.0.ffn_down.weight", of_32, mix), GgmlType::q8_0);
  EXPECT_EQ(gguf_type("blk.0.ffn_down.weight", odd, mix), GgmlType::f16);
  EXPECT_EQ(gguf_type("position_embd.weight", whole, mix), GgmlType::f32);
  EXPECT_EQ(gguf_type("blk.0.attn_norm.weight", {DType::f32, {512}}, mix), GgmlType::f32);
}

}  // namespace
}  // namespace tessera::checkpoint
