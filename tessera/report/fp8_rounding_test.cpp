#include "tessera/report/fp8_rounding.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "tessera/report/metrics.h"
#include "tessera/report/summary.h"
#include "tests/support/temporary_folder.h"

namespace tessera::report {
namespace {

Fp8Rounding rounding(int64_t layer, const std::string& name, double underflow, double overflow) {
  return {
      .layer = layer,
      .path = "layers." + std::to_string(layer) + "." + name,
      .operands = {{{.amax = 2, .scale = 224},
                    {.amax = 0.5, .scale = 896, .underflow = 0.001},
                    {.amax = 1e-5, .scale = 4e7, .underflow = underflow, .overflow = overflow}}}};
}

StepRecord rounded_step(int64_t step, std::vector<Fp8Rounding> layers) {
  StepRecord record{.step = step};
  record.fp8 = std::move(layers);
  return record;
}

TEST(Fp8RoundingTest, TheWorstOperandIsNamed) {
  const std::vector<Fp8Rounding> layers{rounding(0, "up", 0.2, 0), rounding(1, "up", 0.1, 0.03)};
  const auto under = worst_of(layers, &Fp8Rounding::Operand::underflow);
  EXPECT_EQ(under.path, "layers.0.up");
  EXPECT_EQ(under.operand, "gradient");
  const auto figures = fp8_figures(layers);
  ASSERT_EQ(figures.size(), 2u);
  EXPECT_EQ(figures[0].value, 0.2);
  EXPECT_EQ(figures[1].value, 0.03);
  EXPECT_TRUE(fp8_figures({}).empty());
}

TEST(Fp8RoundingTest, ARowForEachBlockAndMeansOfTheLastSteps) {
  Fp8Totals totals;
  EXPECT_TRUE(totals.last().empty());
  for (int64_t step = 1; step <= 60; ++step) {
    totals.add(rounded_step(step, {}));         // nothing was counted
    const double early = step <= 10 ? 0.5 : 0;  // no longer among the last
    totals.add(rounded_step(step, {rounding(0, "up", early + (step % 2 == 0 ? 0.02 : 0.04), 0),
                                   rounding(0, "down", 0.01, 0.25), rounding(3, "up", 0, 0)}));
  }
  EXPECT_EQ(totals.lost().layers, (std::vector<int64_t>{0, 3}));
  EXPECT_EQ(totals.lost().steps.size(), 60u);
  EXPECT_NEAR(totals.lost().values[0].back(), 26, 1e-9);  // percent, of down's gradient
  EXPECT_NEAR(totals.lost().values[1].back(), 0.1, 1e-9);
  const auto last = totals.last();
  ASSERT_EQ(last.size(), 3u);
  EXPECT_NEAR(last[0].operands[2].underflow, 0.03, 1e-12);
  EXPECT_NEAR(last[1].operands[2].overflow, 0.25, 1e-12);
  RunSummary summary;
  summary.fp8 = last;
  EXPECT_NE(
      format_summary(summary).find(
          "underflow 3 % at most (gradient of layers.0.up), overflow 25 % at most (gradient of "
          "layers.0.down)"),
      std::string::npos)
      << format_summary(summary);
  EXPECT_NE(to_json(summary).find("\"layers.3.up\": {"), std::string::npos);
}

TEST(Fp8RoundingTest, MetricsAreReadBack) {
  const tessera::testing::TemporaryFolder folder;
  {
    MetricsLog log({.run_dir = folder.path()});
    log.step(rounded_step(1, {rounding(0, "up", 0.123456, 0), rounding(1, "up", 0, 0)}));
    log.step(rounded_step(2, {}));
  }
  const auto steps = read_metrics(folder.path()).steps;
  ASSERT_EQ(steps.size(), 2u);
  ASSERT_EQ(steps[0].fp8.size(), 2u);
  EXPECT_EQ(steps[0].fp8[0].path, "layers.0.up");
  EXPECT_EQ(steps[0].fp8[1].layer, 1);
  EXPECT_EQ(steps[0].fp8[0].operands[2].underflow, 0.1235);  // four digits
  EXPECT_EQ(steps[0].fp8[0].operands[1].scale, 896);
  EXPECT_TRUE(steps[1].fp8.empty());
}

}  // namespace
}  // namespace tessera::report
