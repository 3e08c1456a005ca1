#include "tessera/report/number.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <set>

namespace tessera::report {
namespace {

using ::testing::ElementsAre;

TEST(WithCommas, GroupsByThree) {
  EXPECT_EQ(with_commas(0), "0");
  EXPECT_EQ(with_commas(999), "999");
  EXPECT_EQ(with_commas(1000), "1,000");
  EXPECT_EQ(with_commas(-123456), "-123,456");
  EXPECT_EQ(with_commas(1234567), "1,234,567");
  EXPECT_EQ(with_commas(std::numeric_limits<int64_t>::min()), "-9,223,372,036,854,775,808");
}

TEST(ClockTime, ReadsLikeAClock) {
  EXPECT_EQ(clock_time(0), "0:00");
  EXPECT_EQ(clock_time(31.4), "0:31");
  EXPECT_EQ(clock_time(59.6), "1:00");
  EXPECT_EQ(clock_time(3 * 3600 + 4 * 60 + 59), "3:04:59");
  EXPECT_EQ(clock_time(2 * 86400 + 3 * 3600 + 240), "2d 03:04");
  EXPECT_EQ(clock_time(-1), "-:--");
  EXPECT_EQ(clock_time(NAN), "-:--");
  EXPECT_EQ(clock_time(INFINITY), "-:--");
}

TEST(LinearTicks, AreTheRoundNumbers) {
  EXPECT_THAT(linear_ticks(0, 100, 6), ElementsAre(0, 20, 40, 60, 80, 100));
  EXPECT_THAT(linear_ticks(1, 100, 6), ElementsAre(20, 40, 60, 80, 100));
  EXPECT_THAT(linear_ticks(1, 3, 9, true), ElementsAre(1, 2, 3));
  EXPECT_THAT(tick_labels(linear_ticks(-0.5, 1, 5)), ElementsAre("-0.5", "0.0", "0.5", "1.0"));
  EXPECT_THAT(tick_labels(linear_ticks(0, 2e6, 5)),
              ElementsAre("0", "500 K", "1 M", "1.5 M", "2 M"));
  EXPECT_THAT(tick_labels(linear_ticks(1, 100'000, 3)), ElementsAre("50 K", "100 K"));
  EXPECT_THAT(tick_labels({123'400, 123'500}), ElementsAre("123,400", "123,500"));
}

TEST(LinearTicks, LieInsideAreEvenAndNeitherManyNorFew) {
  std::mt19937_64 random(1);
  std::uniform_real_distribution<double> exponent(-9, 12), place(-3, 3);
  for (int round = 0; round < 20'000; ++round) {
    const double range = std::pow(10, exponent(random));
    const double low = place(random) * range, high = low + range;
    const int max_count = 2 + static_cast<int>(random() % 10);
    const auto ticks = linear_ticks(low, high, max_count);
    ASSERT_LE(ticks.size(), static_cast<size_t>(max_count));
    ASSERT_GE(ticks.size(), static_cast<size_t>(max_count / 2.5 * 0.999));
    for (const double tick : ticks) {
      ASSERT_GE(tick, low);
      ASSERT_LE(tick, high);
    }
    if (ticks.size() < 2) continue;
    const double step = ticks[1] - ticks[0];
    const double mantissa = step / std::pow(10, std::floor(std::log10(step * 1.0001)));
    ASSERT_NEAR(std::min({std::abs(mantissa - 1), std::abs(mantissa - 2), std::abs(mantissa - 5)}),
                0, 1e-3)
        << low << " " << high << " " << step;
    for (size_t i = 1; i < ticks.size(); ++i) {
      ASSERT_NEAR(ticks[i] - ticks[i - 1], step, 1e-6 * step);
    }
    const auto labels = tick_labels(ticks);
    ASSERT_EQ(std::set(labels.begin(), labels.end()).size(), ticks.size()) << low << " " << high;
  }
}

TEST(LinearTicks, OfStepsAreWhole) {
  std::mt19937_64 random(2);
  for (int round = 0; round < 5'000; ++round) {
    const auto low = static_cast<double>(random() % 1000);
    const double high = low + 1 + static_cast<double>(random() % (round + 1));
    for (const double tick : linear_ticks(low, high, 9, true)) ASSERT_EQ(tick, std::round(tick));
  }
}

TEST(LogTicks, AreOneTwoFiveOrDecades) {
  EXPECT_THAT(log_ticks(0.9, 12, 8), ElementsAre(1, 2, 5, 10));
  EXPECT_THAT(tick_labels(log_ticks(0.1, 1000, 8)), ElementsAre("0.1", "1", "10", "100", "1,000"));
  EXPECT_EQ(log_ticks(2.1, 2.4, 8), linear_ticks(2.1, 2.4, 8));
}

TEST(LogTicks, LieInsideAndRise) {
  std::mt19937_64 random(3);
  std::uniform_real_distribution<double> exponent(-12, 12), width(1e-3, 15);
  for (int round = 0; round < 20'000; ++round) {
    const double low = std::pow(10, exponent(random)), high = low * std::pow(10, width(random));
    const auto ticks = log_ticks(low, high, 8);
    ASSERT_GE(ticks.size(), 2);
    ASSERT_LE(ticks.size(), 8);
    ASSERT_GE(ticks.front(), low);
    ASSERT_LE(ticks.back(), high);
    ASSERT_TRUE(std::is_sorted(ticks.begin(), ticks.end()));
    const auto labels = tick_labels(ticks);
    ASSERT_EQ(std::set(labels.begin(), labels.end()).size(), ticks.size()) << low << " " << high;
  }
}

}  // namespace
}  // namespace tessera::report
