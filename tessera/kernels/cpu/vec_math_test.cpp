// exp, log and tanh against double precision, over a sample of all float32 arguments.
#define TESSERA_ISA_NAMESPACE vec_math_test
#include "tessera/kernels/cpu/vec_math.h"

#include <c10/util/Half.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace tessera::kernels::vec_math_test {
namespace {

/// The largest error in units in the last place over floats in [low, high], every 997th.
template <typename Function, typename Exact>
double worst_ulps(float low, float high, Function function, Exact exact) {
  double worst = 0;
  for (uint64_t bits = 0; bits <= 0xffffffffu; bits += 997) {
    const float x = std::bit_cast<float>(static_cast<uint32_t>(bits));
    if (!(x >= low && x <= high)) continue;
    float y[kWidth];
    store(y, function(splat(x)));
    const double want = exact(static_cast<double>(x));
    const float rounded = std::fabs(static_cast<float>(want));
    const double ulp =
        static_cast<double>(std::nextafter(rounded, std::numeric_limits<float>::infinity())) -
        rounded;
    worst = std::max(worst, std::fabs(y[0] - want) / ulp);
  }
  return worst;
}

float first(Vec v) {
  float lanes[kWidth];
  store(lanes, v);
  return lanes[0];
}

TEST(VecMath, ErrorsStayWithinTheirBounds) {
  EXPECT_LE(
      worst_ulps(
          -87.33f, 88.72f, [](Vec v) { return exp(v); }, [](double x) { return std::exp(x); }),
      1.5);
  EXPECT_LE(
      worst_ulps(
          1.2e-38f, 3.4e38f, [](Vec v) { return log(v); }, [](double x) { return std::log(x); }),
      1.5);
  EXPECT_LE(
      worst_ulps(
          -20.0f, 20.0f, [](Vec v) { return tanh(v); }, [](double x) { return std::tanh(x); }),
      2.0);
}

TEST(VecMath, Limits) {
  const float infinity = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(first(exp(splat(-infinity))), 0);
  EXPECT_EQ(first(exp(splat(-200))), 0);
  EXPECT_EQ(first(exp(splat(0))), 1);
  EXPECT_EQ(first(exp(splat(200))), infinity);
  EXPECT_TRUE(std::isnan(first(exp(splat(nan)))));
  EXPECT_EQ(first(log(splat(0))), -infinity);
  EXPECT_EQ(first(log(splat(infinity))), infinity);
  EXPECT_TRUE(std::isnan(first(log(splat(-1)))));
  EXPECT_EQ(first(tanh(splat(infinity))), 1);
  EXPECT_EQ(first(tanh(splat(-infinity))), -1);
  EXPECT_TRUE(std::isnan(first(tanh(splat(nan)))));
}

TEST(VecMath, Bfloat16RoundsToNearestEven) {
  const auto rounded = [](float x) {
    Bf16 out[kWidth];
    store(out, splat(x));
    return out[0].bits;
  };
  EXPECT_EQ(rounded(1.0f), 0x3f80);
  EXPECT_EQ(rounded(std::bit_cast<float>(0x3f808000u)), 0x3f80);  // halfway: to even
  EXPECT_EQ(rounded(std::bit_cast<float>(0x3f818000u)), 0x3f82);
  EXPECT_EQ(rounded(std::bit_cast<float>(0x3f808001u)), 0x3f81);
  EXPECT_EQ(rounded(std::numeric_limits<float>::infinity()), 0x7f80);
  EXPECT_EQ(rounded(std::bit_cast<float>(0x7fffffffu)), 0x7fc0);
}

TEST(VecMath, Float16IsLibTorchs) {
  // All codes there and back, and what lies on both sides of every place where rounding turns.
  for (uint32_t code = 0; code < 1 << 16; ++code) {
    const Half half{static_cast<uint16_t>(code)};
    Half lanes[kWidth];
    for (auto& lane : lanes) lane = half;
    const float value = first(load(lanes));
    const float want = c10::Half(half.bits, c10::Half::from_bits());
    if (std::isnan(want)) {
      EXPECT_TRUE(std::isnan(value)) << code;
      continue;
    }
    ASSERT_EQ(std::bit_cast<uint32_t>(value), std::bit_cast<uint32_t>(want)) << code;
    if (std::isinf(want)) continue;
    const uint32_t last = std::bit_cast<uint32_t>(want);
    const float middle =
        want + std::ldexp(std::signbit(want) ? -0.5f : 0.5f,
                          std::max(std::ilogb(want == 0 ? 0x1p-24f : want), -14) - 10);
    const uint32_t turn = std::bit_cast<uint32_t>(middle);
    for (const uint32_t bits : {last, last + 1, turn - 1, turn, turn + 1}) {
      const float x = std::bit_cast<float>(bits);
      store(lanes, splat(x));
      ASSERT_EQ(lanes[0].bits, c10::Half(x).x) << x;
      ASSERT_EQ(first(rounded_to(splat(x), lanes)), static_cast<float>(c10::Half(x))) << x;
    }
  }
  Half lanes[kWidth];
  store(lanes, splat(std::numeric_limits<float>::quiet_NaN()));
  EXPECT_TRUE(std::isnan(first(load(lanes))));
  store(lanes, splat(-1e6f));
  EXPECT_EQ(first(load(lanes)), -std::numeric_limits<float>::infinity());
}

}  // namespace
}  // namespace tessera::kernels::vec_math_test
