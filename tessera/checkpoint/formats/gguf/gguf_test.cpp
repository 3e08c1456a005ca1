#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <random>

#include "tessera/base/file.h"
#include "tessera/checkpoint/formats/gguf/file.h"
#include "tessera/checkpoint/formats/open_source.h"
#include "tessera/checkpoint/memory_source.h"
#include "tessera/data/testing.h"
#include "tests/support/temporary_folder.h"

namespace tessera::checkpoint {
namespace {

using data::testing::refusal;
using tessera::testing::TemporaryFolder;
using testing::Bytes;
using ::testing::HasSubstr;
using testing::MemorySource;
using testing::read_all;

std::vector<float> normal_values(size_t count) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (auto& value : values) value = normal(random);
  return values;
}

std::vector<float> floats(const TensorSource& source, const std::string& name) {
  const auto bytes = read_all(source, name);
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

/// Writes one tensor "x" [3, 64] of the type and one [5] behind it.
GgufSource written(const TemporaryFolder& folder, const std::vector<float>& values, GgmlType type) {
  MemorySource source;
  source.add("x", DType::f32, {3, 64}, values);
  source.add_counting("after", {5});
  const auto path = folder.path() / "model.gguf";
  write_gguf(source, {{"general.architecture", gguf_string("llama")}, {"n", gguf_u32(7)}},
             {{"x", type}, {"after", GgmlType::f32}}, path);
  return GgufSource(path);
}

TEST(GgufTest, PlainTypesComeBackAsTheyWere) {
  const TemporaryFolder folder;
  const auto values = normal_values(192);
  const auto source = written(folder, values, GgmlType::f32);
  EXPECT_EQ(floats(source, "x"), values);
  EXPECT_EQ(floats(source, "after"), (std::vector<float>{1, 2, 3, 4, 5}));
  EXPECT_EQ(source.info("x").shape, (std::vector<int64_t>{3, 64}));
  ASSERT_NE(source.find("n"), nullptr);
  EXPECT_EQ(*source.find("n"), gguf_u32(7));
  EXPECT_EQ(written(folder, values, GgmlType::f16).info("x").dtype, DType::f16);
  EXPECT_EQ(written(folder, values, GgmlType::bf16).info("x").dtype, DType::bf16);
  EXPECT_EQ(open_with_format(folder.path() / "model.gguf").format, Format::gguf);
}

TEST(GgufTest, BlocksAreWithinHalfAStepOfTheirValues) {
  const TemporaryFolder folder;
  const auto values = normal_values(192);
  // Q4_0's largest value of the other sign may be a whole step beyond 7.
  for (const auto& [type, steps, within] :
       {std::tuple{GgmlType::q8_0, 127.0F, 0.51F}, std::tuple{GgmlType::q4_0, 8.0F, 1.01F}}) {
    const auto source = written(folder, values, type);
    const auto read = floats(source, "x");
    for (size_t i = 0; i < values.size(); ++i) {
      float largest = 0;
      for (size_t j = i / 32 * 32; j < i / 32 * 32 + 32; ++j)
        largest = std::max(largest, std::abs(values[j]));
      EXPECT_NEAR(read[i], values[i], within * 1.001F * largest / steps) << i;
    }
    float part[3];  // over the edge of a block
    source.read("x", 31, std::as_writable_bytes(std::span(part)));
    EXPECT_TRUE(std::equal(part, part + 3, read.begin() + 31));
  }
}

TEST(GgufTest, Q40RoundsAsTheFormatSays) {
  std::vector<float> values(32, 0);
  values[0] = -8, values[1] = 7, values[2] = 0.5, values[3] = -0.5, values[16] = 3;
  Bytes block(18);
  quantize(GgmlType::q4_0, values, block);
  EXPECT_EQ(block[0], std::byte{0x00});  // 1.0 as f16 is 0x3c00
  EXPECT_EQ(block[1], std::byte{0x3c});
  EXPECT_EQ(block[2], std::byte{0xb0});  // 3 + 8 above, -8 + 8 below
  EXPECT_EQ(block[3], std::byte{0x8f});
  EXPECT_EQ(block[4], std::byte{0x89});
  EXPECT_EQ(block[5], std::byte{0x88});
}

TEST(GgufTest, RefusesRowsThatAreNoWholeBlocks) {
  const TemporaryFolder folder;
  MemorySource source;
  source.add_counting("x", {2, 33});
  EXPECT_THAT(refusal([&] {
                write_gguf(source, {}, {{"x", GgmlType::q8_0}}, folder.path() / "x.gguf");
              }),
              HasSubstr("rows of 33 are no whole blocks of 32"));
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "x.gguf"));
}

TEST(GgufTest, RefusesEveryCutFile) {
  const TemporaryFolder folder;
  written(folder, normal_values(192), GgmlType::q8_0);
  const auto whole = read_file(folder.path() / "model.gguf");
  const auto path = folder.path() / "cut.gguf";
  const size_t padding = 12;  // behind the last tensor, 5 numbers
  for (size_t size = 4; size + padding < whole.size(); ++size) {
    write_file(path, whole.substr(0, size));
    EXPECT_NE(refusal([&] { GgufSource{path}; }), "") << size;
  }
}

TEST(GgufTest, RefusesCountsThatTheFileBelies) {
  const TemporaryFolder folder;
  written(folder, normal_values(192), GgmlType::q8_0);
  const auto whole = read_file(folder.path() / "model.gguf");
  const auto path = folder.path() / "damaged.gguf";
  const auto with = [&](size_t at, char byte) {
    auto damaged = whole;
    damaged[at] = byte;
    write_file(path, damaged);
    return refusal([&] { GgufSource{path}; });
  };
  EXPECT_THAT(with(4, 9), HasSubstr("expected GGUF version 2 or 3, got 9"));
  EXPECT_THAT(with(14, 1), HasSubstr("tensors, for which its"));
  EXPECT_THAT(with(22, 1), HasSubstr("keys, for which its"));
  EXPECT_THAT(with(0, 'H'), HasSubstr("no GGUF file"));
  const auto type = whole.find(std::string("\x08\0\0\0", 4), whole.find('x', 80));
  ASSERT_NE(type, std::string::npos);
  EXPECT_THAT(with(type, 10), HasSubstr("is stored as ggml's type 10"));
}

}  // namespace
}  // namespace tessera::checkpoint
