#include "tessera/report/expert_load.h"

#include <gtest/gtest.h>

#include "tessera/base/file.h"

namespace tessera::report {
namespace {

StepRecord step_with(int64_t step, std::vector<ExpertLoad> experts) {
  StepRecord record{.step = step};
  record.experts = std::move(experts);
  return record;
}

TEST(ExpertLoadTest, MaxVioIsTheFullestAboveTheMean) {
  EXPECT_DOUBLE_EQ((ExpertLoad{.layer = 0, .tokens = {4, 4, 4}}.max_violation()), 0);
  EXPECT_DOUBLE_EQ((ExpertLoad{.layer = 0, .tokens = {9, 3, 0}}.max_violation()), 1.25);
  EXPECT_DOUBLE_EQ((ExpertLoad{.layer = 0, .tokens = {0, 0}}.max_violation()), 0);
}

TEST(ExpertLoadTest, LastStepsTogether) {
  ExpertTotals totals;
  EXPECT_TRUE(totals.last().empty());
  totals.add(step_with(1, {}));
  EXPECT_TRUE(totals.empty());
  for (int64_t step = 1; step <= 60; ++step) {
    const int64_t early = step <= 10 ? 100 : 0;  // no longer among the last
    totals.add(step_with(
        step, {{.layer = 1, .tokens = {3 + early, 1}, .entropy = 0.5},
               {.layer = 2,
                .tokens = step % 2 == 0 ? std::vector<int64_t>{4, 0} : std::vector<int64_t>{0, 4},
                .entropy = 0.25}}));
  }
  const auto last = totals.last();
  ASSERT_EQ(last.size(), 2u);
  EXPECT_EQ(last[0].load.tokens, (std::vector<int64_t>{150, 50}));
  EXPECT_DOUBLE_EQ(last[0].load.max_violation(), 0.5);
  EXPECT_NEAR(last[0].load.entropy, 0.5, 1e-12);
  // Each step takes one expert alone, all steps together take both alike.
  EXPECT_DOUBLE_EQ(last[1].load.max_violation(), 0);
  EXPECT_NEAR(last[1].mean_of_max_violation, 1, 1e-12);
}

TEST(ExpertLoadTest, WhatIsDroppedHasAMeanAndAPictureOfItsOwn) {
  ExpertTotals totals;
  for (int64_t step = 1; step <= 20; ++step) {
    totals.add(
        step_with(step, {{.layer = 3, .tokens = {3, 1}, .dropped = step % 2 == 0 ? 0.2 : 0.4},
                         {.layer = 4, .tokens = {2, 2}, .dropped = 0.0}}));
  }
  const auto last = totals.last();
  EXPECT_NEAR(last[0].load.dropped.value(), 0.3, 1e-12);
  EXPECT_EQ(last[1].load.dropped.value(), 0);
  EXPECT_EQ(totals.dropped().values[0][0], 40);
  const auto svg = expert_load_svg(totals);
  EXPECT_TRUE(svg.starts_with("<svg") && svg.ends_with("</svg>\n"));
  EXPECT_NE(svg.find("Choices dropped"), std::string::npos);
  EXPECT_NE(svg.find("viewBox=\"0 0 900 960\""), std::string::npos);
  ExpertTotals without;
  without.add(step_with(1, {{.layer = 3, .tokens = {3, 1}}}));
  EXPECT_FALSE(without.last()[0].load.dropped);
  EXPECT_EQ(expert_load_svg(without).find("Choices dropped"), std::string::npos);
}

TEST(ExpertLoadTest, APictureHasARowForEachLayerAndStaysSmall) {
  ExpertTotals totals;
  for (int64_t step = 1; step <= 3000; ++step) {
    std::vector<ExpertLoad> layers;
    for (int64_t layer = 0; layer < 48; ++layer) {
      layers.push_back({.layer = layer, .tokens = {100 + layer, 100, 100 - step % 50}});
    }
    totals.add(step_with(step, std::move(layers)));
  }
  const auto svg = expert_load_svg(totals, {.title = "Load", .subtitle = "of a test"});
  EXPECT_TRUE(svg.starts_with("<svg") && svg.ends_with("</svg>\n"));
  EXPECT_LT(svg.size(), 250'000u);
  EXPECT_NE(svg.find(">45</text>"), std::string::npos);  // every third layer has its number
  EXPECT_NE(expert_load_svg({}).find("</svg>"), std::string::npos);
}

}  // namespace
}  // namespace tessera::report
