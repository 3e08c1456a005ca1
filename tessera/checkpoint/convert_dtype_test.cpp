// Every 16-bit value, and random numbers against a search for the nearest one.
#include "tessera/checkpoint/convert_dtype.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace tessera::checkpoint {
namespace {

template <typename To, typename From>
std::vector<To> converted(const std::vector<From>& values, DType from, DType to) {
  std::vector<To> result(values.size());
  convert_values(std::as_bytes(std::span(values)), from, std::as_writable_bytes(std::span(result)),
                 to);
  return result;
}

/// A 16-bit format by its definition: sign, exponent, fraction.
struct FloatFormat {
  DType dtype;
  int fraction_bits, bias;

  uint16_t infinity() const {
    return static_cast<uint16_t>(0x7fff >> fraction_bits << fraction_bits);
  }
  bool is_nan(uint16_t bits) const { return (bits & 0x7fff) > infinity(); }

  double value(uint16_t bits) const {
    const int exponent = (bits & 0x7fff) >> fraction_bits;
    const int fraction = bits & ((1 << fraction_bits) - 1);
    const double sign = bits & 0x8000 ? -1 : 1;
    if ((bits & 0x7fff) == infinity()) return sign * std::numeric_limits<double>::infinity();
    const int hidden = exponent == 0 ? 0 : 1 << fraction_bits;
    return sign * std::ldexp(fraction + hidden, std::max(exponent, 1) - bias - fraction_bits);
  }

  /// The nearest of all values, found by bisection; a tie goes to the even one. Infinity stands for
  /// the power of two that would come next.
  uint16_t nearest(double wanted) const {
    const double magnitude = std::fabs(wanted);
    const auto at = [&](int bits) {
      return bits < infinity() ? value(static_cast<uint16_t>(bits)) : std::ldexp(1, max_exponent());
    };
    int below = 0, above = infinity();
    while (above - below > 1) {
      const int middle = (below + above) / 2;
      (at(middle) <= magnitude ? below : above) = middle;
    }
    const double down = magnitude - at(below), up = at(above) - magnitude;
    const bool takes_above = up < down || (up == down && above % 2 == 0);
    return static_cast<uint16_t>((takes_above ? above : below) |
                                 (std::signbit(wanted) ? 0x8000 : 0));
  }

 private:
  int max_exponent() const { return (infinity() >> fraction_bits) - bias; }
};

constexpr FloatFormat kF16{DType::f16, 10, 15}, kBF16{DType::bf16, 7, 127};

std::vector<uint16_t> all_bits() {
  std::vector<uint16_t> bits(65536);
  for (size_t i = 0; i < bits.size(); ++i) bits[i] = static_cast<uint16_t>(i);
  return bits;
}

class SixteenBits : public ::testing::TestWithParam<FloatFormat> {};

TEST_P(SixteenBits, EveryValueWidensExactlyAndComesBack) {
  const auto format = GetParam();
  const auto bits = all_bits();
  const auto floats = converted<float>(bits, format.dtype, DType::f32);
  const auto doubles = converted<double>(bits, format.dtype, DType::f64);
  const auto back = converted<uint16_t>(floats, DType::f32, format.dtype);
  const auto back_from_f64 = converted<uint16_t>(doubles, DType::f64, format.dtype);
  for (size_t i = 0; i < bits.size(); ++i) {
    if (format.is_nan(bits[i])) {
      ASSERT_TRUE(std::isnan(floats[i]) && std::isnan(doubles[i])) << i;
      ASSERT_TRUE(format.is_nan(back[i]) && format.is_nan(back_from_f64[i])) << i;
      ASSERT_EQ(back[i] & 0x8000, bits[i] & 0x8000) << i;
    } else {
      ASSERT_EQ(floats[i], format.value(bits[i])) << i;
      ASSERT_EQ(std::signbit(floats[i]), bits[i] >= 0x8000) << i;
      ASSERT_EQ(doubles[i], format.value(bits[i])) << i;
      ASSERT_EQ(back[i], bits[i]);
      ASSERT_EQ(back_from_f64[i], bits[i]);
    }
  }
}

TEST_P(SixteenBits, RandomFloatsRoundToTheNearest) {
  const auto format = GetParam();
  std::mt19937 random(1);
  std::vector<float> floats(1 << 18);
  for (auto& value : floats) value = std::bit_cast<float>(static_cast<uint32_t>(random()));
  for (size_t i = 0; i < floats.size(); i += 2) {  // where f16 is at home: 2^-26 to 2^18
    const auto exponent = 101 + random() % 45;
    floats[i] = std::bit_cast<float>(static_cast<uint32_t>(exponent << 23 | random() % (1 << 23)));
  }
  const auto rounded = converted<uint16_t>(floats, DType::f32, format.dtype);
  for (size_t i = 0; i < floats.size(); ++i) {
    if (std::isnan(floats[i])) {
      ASSERT_TRUE(format.is_nan(rounded[i])) << std::bit_cast<uint32_t>(floats[i]);
    } else {
      ASSERT_EQ(rounded[i], format.nearest(floats[i])) << floats[i];
    }
  }
}

TEST_P(SixteenBits, DoublesAreRoundedOnce) {
  const auto format = GetParam();
  std::vector<double> doubles;
  for (int bits = 0; bits < format.infinity(); ++bits) {
    const double low = format.value(static_cast<uint16_t>(bits));
    const double high = bits + 1 == format.infinity()
                            ? 2 * low - format.value(static_cast<uint16_t>(bits - 1))
                            : format.value(static_cast<uint16_t>(bits + 1));
    const double tie = (low + high) / 2;  // exact; its neighbours are lost in f32
    for (const double value : {tie, std::nextafter(tie, low), std::nextafter(tie, high)}) {
      doubles.insert(doubles.end(), {value, -value});
    }
  }
  const auto rounded = converted<uint16_t>(doubles, DType::f64, format.dtype);
  for (size_t i = 0; i < doubles.size(); ++i) {
    ASSERT_EQ(rounded[i], format.nearest(doubles[i])) << i << ": " << doubles[i];
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, SixteenBits, ::testing::Values(kF16, kBF16),
                         [](const auto& info) {
                           return std::string(dtype_name(info.param.dtype));
                         });

TEST(ConvertDtype, OneSixteenBitTypeToTheOtherRoundsOnce) {
  const auto bits = all_bits();
  const auto to_bf16 = converted<uint16_t>(bits, DType::f16, DType::bf16);
  const auto to_f16 = converted<uint16_t>(bits, DType::bf16, DType::f16);
  for (size_t i = 0; i < bits.size(); ++i) {
    if (kF16.is_nan(bits[i])) {
      ASSERT_TRUE(kBF16.is_nan(to_bf16[i]));
    } else {
      ASSERT_EQ(to_bf16[i], kBF16.nearest(kF16.value(bits[i]))) << i;
    }
    if (kBF16.is_nan(bits[i])) {
      ASSERT_TRUE(kF16.is_nan(to_f16[i]));
    } else {
      ASSERT_EQ(to_f16[i], kF16.nearest(kBF16.value(bits[i]))) << i;
    }
  }
}

TEST(ConvertDtype, BetweenF32AndF64AndAtTheEnds) {
  const double infinity = std::numeric_limits<double>::infinity();
  const auto floats = converted<float>(
      std::vector<double>{0.1, 1e300, -1e300, infinity, 1e-300, -0.0, NAN}, DType::f64, DType::f32);
  EXPECT_EQ(floats[0], 0.1F);
  EXPECT_EQ(floats[1], infinity);
  EXPECT_EQ(floats[2], -infinity);
  EXPECT_EQ(floats[3], infinity);
  EXPECT_EQ(floats[4], 0.0F);
  EXPECT_TRUE(std::signbit(floats[5]));
  EXPECT_TRUE(std::isnan(floats[6]));
  const auto halves = converted<uint16_t>(
      std::vector<double>{65504, 65519.99, 65520, -1e300, infinity, NAN}, DType::f64, DType::f16);
  EXPECT_EQ(halves, (std::vector<uint16_t>{0x7bff, 0x7bff, 0x7c00, 0xfc00, 0x7c00, halves[5]}));
  EXPECT_TRUE(kF16.is_nan(halves[5]));
}

TEST(ConvertDtype, IntegersGoNowhereButToThemselves) {
  EXPECT_TRUE(is_convertible(DType::i64, DType::i64));
  EXPECT_FALSE(is_convertible(DType::i64, DType::f32));
  EXPECT_FALSE(is_convertible(DType::f32, DType::i64));
  EXPECT_FALSE(is_convertible(DType::f8_e4m3, DType::f32));
  EXPECT_EQ(converted<int64_t>(std::vector<int64_t>{-1, 7}, DType::i64, DType::i64),
            (std::vector<int64_t>{-1, 7}));
}

}  // namespace
}  // namespace tessera::checkpoint
