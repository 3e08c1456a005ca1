// exp, log and tanh against double precision, over a sample of all float32 arguments.
#define TESSERA_ISA_NAMESPACE vec_math_test
#include "tessera/kernels/cpu/vec_math.h"

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

}  // namespace
}  // namespace tessera::kernels::vec_math_test
