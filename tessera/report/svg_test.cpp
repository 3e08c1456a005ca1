#include "tessera/report/svg.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <regex>
#include <string>
#include <vector>

namespace tessera::report {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

std::vector<StepValue> noisy_curve(int64_t steps) {
  std::mt19937 random(5);
  std::normal_distribution<double> noise(0, 0.1);
  std::vector<StepValue> points;
  for (int64_t step = 1; step <= steps; ++step) {
    points.emplace_back(
        step, 2 + 6 * std::exp(-5.0 * static_cast<double>(step) / static_cast<double>(steps)) +
                  noise(random));
  }
  return points;
}

size_t count(const std::string& text, const std::string& part) {
  size_t found = 0;
  for (size_t at = 0; (at = text.find(part, at)) != std::string::npos; at += part.size()) ++found;
  return found;
}

TEST(LossCurve, StaysSmallAndHasEverything) {
  const auto svg = loss_curve_svg(noisy_curve(100'000), {{50'000, 3.0}, {100'000, 2.5}},
                                  {.title = "tiny <llama> & co", .subtitle = "2 ranks"});
  EXPECT_LT(svg.size(), 30'000);
  EXPECT_THAT(svg, HasSubstr("tiny &lt;llama&gt; &amp; co"));
  EXPECT_THAT(svg, HasSubstr("2 ranks"));
  EXPECT_THAT(svg, HasSubstr("train, smoothed"));
  EXPECT_THAT(svg, HasSubstr("validation</text>"));
  EXPECT_EQ(count(svg, "class=\"dot\" cx=\"12\""), 1);  // legend
  EXPECT_EQ(count(svg, "<circle"), 3);
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
  EXPECT_THAT(svg, Not(HasSubstr("inf")));
}

TEST(LossCurve, DrawsEveryPointInsideThePlot) {
  const auto svg = loss_curve_svg(noisy_curve(300), {});
  const std::regex point("[ML]([0-9.]+) ([0-9.]+)(?=[ML\"])");
  size_t points = 0;
  for (std::sregex_iterator at(svg.begin(), svg.end(), point), end; at != end; ++at, ++points) {
    EXPECT_GE(std::stod((*at)[1]), 72);
    EXPECT_LE(std::stod((*at)[1]), 826);
    EXPECT_GE(std::stod((*at)[2]), 88);
    EXPECT_LE(std::stod((*at)[2]), 428);
  }
  EXPECT_EQ(points, 600);  // raw and smoothed
}

TEST(LossCurve, ChoosesALogarithmicAxisForManyMagnitudes) {
  EXPECT_THAT(loss_curve_svg({{1, 11.0}, {2, 3.0}}, {}), Not(HasSubstr("(log)")));
  EXPECT_THAT(loss_curve_svg({{1, 900.0}, {2, 3.0}}, {}), HasSubstr("loss (log)"));
  EXPECT_THAT(loss_curve_svg({{1, 900.0}, {2, 0.0}}, {}, {.y = AxisScale::logarithmic}),
              Not(HasSubstr("(log)")));
}

TEST(LossCurve, MarksTheFirstValueThatIsNotFinite) {
  const auto svg = loss_curve_svg({{1, 3.0}, {2, kNaN}, {3, INFINITY}, {4, 2.0}}, {{4, kNaN}});
  EXPECT_THAT(svg, HasSubstr("not finite at step 2"));
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
  EXPECT_THAT(svg, Not(HasSubstr("inf\"")));
}

TEST(LossCurve, StaysSmallWhenMostOfALongRunIsNotFinite) {
  auto points = noisy_curve(50'000);
  for (size_t i = 0; i < points.size(); ++i) {
    if (i % 7 < 4) points[i].second = i % 2 == 0 ? kNaN : INFINITY;
  }
  EXPECT_LT(loss_curve_svg(points, {}).size(), 40'000);
}

TEST(LossCurve, ManagesWithLittleOrNothing) {
  EXPECT_THAT(loss_curve_svg({}, {}), HasSubstr("no value yet"));
  EXPECT_THAT(loss_curve_svg({{7, kNaN}}, {}), HasSubstr("no value yet"));
  for (const auto& svg :
       {loss_curve_svg({{1, 2.0}}, {}), loss_curve_svg({}, {{5, 2.0}}),
        loss_curve_svg({{1, 0.0}, {2, 0.0}}, {}), loss_curve_svg({{1, -1e300}, {2, 1e300}}, {})}) {
    EXPECT_THAT(svg, Not(HasSubstr("no value yet")));
    EXPECT_THAT(svg, Not(HasSubstr("nan")));
  }
}

TEST(LossCurve, APointWithoutNeighboursIsADot) {
  EXPECT_EQ(count(loss_curve_svg({{1, 2.0}}, {}), "h0\""), 1);
  EXPECT_EQ(count(loss_curve_svg({{1, 2.0}, {2, 1.0}}, {}), "h0\""), 0);
  EXPECT_EQ(count(loss_curve_svg({{1, 2.0}, {2, kNaN}, {3, 1.0}, {4, 1.0}}, {}), "h0M"), 1);
}

TEST(MovingAverage, EqualsTheDefinition) {
  EXPECT_EQ(moving_average({8, 4, 6, 2, 4}, 0), (std::vector<double>{8, 4, 6, 2, 4}));
  EXPECT_EQ(moving_average({8, 4, 6, 2, 4}, 1), (std::vector<double>{8, 6, 4, 4, 3}));
  const auto gap = moving_average({2, kNaN, 4, kNaN, 6}, 2);
  EXPECT_EQ(gap[0], 2);
  EXPECT_TRUE(std::isnan(gap[1]));
  EXPECT_EQ(gap[2], 4);
  EXPECT_EQ(gap[4], 5);
}

TEST(Decimate, KeepsExtremesOrderAndGaps) {
  auto points = noisy_curve(10'007);
  points[4000].second = 50, points[4001].second = -50, points[9000].second = kNaN;
  const auto kept = decimate(points, 1000);
  EXPECT_LE(kept.size(), 1001);
  EXPECT_TRUE(std::is_sorted(kept.begin(), kept.end(),
                             [](const auto& a, const auto& b) { return a.first < b.first; }));
  EXPECT_NE(std::find(kept.begin(), kept.end(), points[4000]), kept.end());
  EXPECT_NE(std::find(kept.begin(), kept.end(), points[4001]), kept.end());
  EXPECT_EQ(
      std::count_if(kept.begin(), kept.end(), [](const auto& p) { return std::isnan(p.second); }),
      1);
  EXPECT_EQ(decimate(kept, kept.size()).size(), kept.size());
}

}  // namespace
}  // namespace tessera::report
