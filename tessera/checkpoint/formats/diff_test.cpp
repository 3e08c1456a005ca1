// What differs between two sources, and by how much.
#include "tessera/checkpoint/formats/diff.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tessera/checkpoint/memory_source.h"

namespace tessera::checkpoint {
namespace {

using ::testing::ElementsAre;
using testing::MemorySource;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

template <typename T>
MemorySource source_of(DType dtype, const std::vector<T>& values) {
  MemorySource source;
  source.add("x", dtype, {std::ssize(values)}, values);
  return source;
}

/// What diff says of two tensors of one type that differ.
template <typename T>
TensorDifference difference(DType dtype, const std::vector<T>& a, const std::vector<T>& b,
                            double tolerance = 0) {
  const auto found = diff(source_of(dtype, a), source_of(dtype, b), tolerance);
  EXPECT_EQ(found.tensors.size(), 1u);
  return found.tensors.empty() ? TensorDifference{} : found.tensors.front();
}

TEST(Diff, NamesShapesAndDtypes) {
  MemorySource a, b;
  for (auto* source : {&a, &b}) {
    source->add("same", DType::i8, {2}, std::vector<int8_t>{1, -2});
    source->add("none", DType::f32, {0}, std::vector<float>{});
    source->add("shape", DType::i8, {2, source == &a ? 1 : 2}, std::vector<int8_t>(4));
    source->add("dtype", source == &a ? DType::i8 : DType::u8, {4}, std::vector<int8_t>(4));
  }
  a.add_counting("first", {1});
  b.add_counting("second", {1});
  const auto found = diff(a, b, 0);
  EXPECT_THAT(found.only_a, ElementsAre("first"));
  EXPECT_THAT(found.only_b, ElementsAre("second"));
  EXPECT_EQ(found.num_equal, 2);
  ASSERT_EQ(found.tensors.size(), 2u);
  EXPECT_EQ(found.tensors[0].name, "dtype");
  EXPECT_EQ(found.tensors[1].name, "shape");
  EXPECT_TRUE(std::isnan(found.tensors[1].max_difference));
  EXPECT_FALSE(diff(a, a, 0).any());
}

TEST(Diff, ValuesOfEveryType) {
  const auto f32 = difference<float>(DType::f32, {1, 2, 3, 4}, {1, 2.5, 3, 3});
  EXPECT_EQ(f32.num_different, 2);
  EXPECT_EQ(f32.max_difference, 1);
  EXPECT_EQ(difference<double>(DType::f64, {1}, {1 + 1e-12}).max_difference, 1 + 1e-12 - 1);
  EXPECT_EQ(difference<uint16_t>(DType::bf16, {0x3F80}, {0x4000}).max_difference, 1);
  EXPECT_EQ(difference<uint16_t>(DType::f16, {0x3C00}, {0x4200}).max_difference, 2);
  EXPECT_EQ(difference<int8_t>(DType::i8, {-128}, {127}).max_difference, 255);
  EXPECT_EQ(difference<uint8_t>(DType::u8, {0}, {255}).max_difference, 255);
  EXPECT_EQ(difference<int16_t>(DType::i16, {-1}, {1}).max_difference, 2);
  EXPECT_EQ(difference<int32_t>(DType::i32, {-1}, {1}).max_difference, 2);
  const int64_t large = (int64_t{1} << 53) + 1;
  EXPECT_EQ(difference<int64_t>(DType::i64, {large}, {large + 1}).max_difference, 1);
  EXPECT_EQ(difference<uint64_t>(DType::u64, {~uint64_t{0}}, {~uint64_t{0} - 3}).max_difference, 3);
  EXPECT_EQ(difference<uint8_t>(DType::boolean, {1, 0}, {0, 0}).num_different, 1);
  const auto codes = difference<uint8_t>(DType::f8_e4m3, {1, 2, 3}, {1, 3, 4});
  EXPECT_EQ(codes.num_different, 2);
  EXPECT_TRUE(std::isnan(codes.max_difference));
}

TEST(Diff, SpecialValues) {
  const std::vector<float> a{kNan, 0.0f, INFINITY, 1}, b{-kNan, -0.0f, INFINITY, 2};
  EXPECT_EQ(difference<float>(DType::f32, a, b).num_different, 1);
  EXPECT_EQ(difference<float>(DType::f32, {kNan}, {1}, 1e30).max_difference, kInfinity);
  EXPECT_EQ(difference<float>(DType::f32, {INFINITY}, {1}, 1e30).num_different, 1);
}

TEST(Diff, WithinTheTolerance) {
  const auto a = source_of<float>(DType::f32, {1, 2}), b = source_of<float>(DType::f32, {1, 2.5});
  EXPECT_TRUE(diff(a, b, 0.25).any());
  EXPECT_FALSE(diff(a, b, 0.5).any());
}

/// Another dtype is a difference, but the values are compared all the same.
TEST(Diff, FloatsOfTwoTypes) {
  const auto a = source_of<float>(DType::f32, {1, 2.001f});
  const auto b = source_of<uint16_t>(DType::bf16, {0x3F80, 0x4000});
  const auto found = diff(a, b, 0);
  ASSERT_EQ(found.tensors.size(), 1u);
  EXPECT_EQ(found.tensors[0].num_different, 1);
  EXPECT_NEAR(found.tensors[0].max_difference, 0.001, 1e-6);
}

TEST(Diff, ReadsInChunks) {
  std::vector<int8_t> values((1 << 20) + 9);
  auto a = source_of(DType::i8, values);
  values.front() = values.back() = 3;
  const auto found = diff(a, source_of(DType::i8, values), 0);
  ASSERT_EQ(found.tensors.size(), 1u);
  EXPECT_EQ(found.tensors[0].num_different, 2);
}

}  // namespace
}  // namespace tessera::checkpoint
