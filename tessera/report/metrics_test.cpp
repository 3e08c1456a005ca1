#include "tessera/report/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <fstream>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tests/support/temporary_folder.h"

namespace tessera::report {
namespace {

class MetricsLogTest : public tessera::testing::TemporaryFolderTest {
 protected:
  std::string text() const { return read_file(folder_ / kMetricsFile); }

  void append_text(const std::string& text) const {
    std::ofstream(folder_ / kMetricsFile, std::ios::app) << text;
  }
};

TEST_F(MetricsLogTest, ALineStandsInTheFileWhenTheCallReturns) {
  MetricsLog log({folder_});
  log.step({.step = 1, .loss = 7.5, .mfu = 0.25, .tokens_seen = 2048, .validation_loss = 8});
  EXPECT_EQ(text(),
            R"({"step":1,"loss":7.5,"grad_norm":0.0,"learning_rate":0.0,"step_seconds":0.0,)"
            R"("tokens_per_second":0.0,"mfu":0.25,"tokens_seen":2048,"memory_bytes":0,)"
            R"("communication_wait_seconds":0.0})"
            "\n"
            R"({"step":1,"validation_loss":8.0})"
            "\n");
}

TEST_F(MetricsLogTest, FiguresStandBehindByTheirTags) {
  MetricsLog log({folder_});
  log.step({.step = 1,
            .validation_loss = 8,
            .figures = {{"rewards/margins", 0.5, "margin"}},
            .validation_figures = {{"rewards/margins", 0.25, "margin"}}});
  EXPECT_THAT(text(),
              ::testing::HasSubstr(R"("communication_wait_seconds":0.0,"rewards/margins":0.5})"));
  EXPECT_THAT(text(),
              ::testing::HasSubstr(R"({"step":1,"validation_loss":8.0,"rewards/margins":0.25})"));
  EXPECT_EQ(read_metrics(folder_).steps.size(), 1);
  const auto scalars = scalars_of(
      {.validation_loss = 1, .figures = {{"a/b", 2, ""}}, .validation_figures = {{"a/b", 3, ""}}});
  EXPECT_EQ(scalars[scalars.size() - 3].tag, "a/b");
  EXPECT_EQ(scalars.back().tag, "validation/a/b");
}

TEST_F(MetricsLogTest, EveryFiniteNumberReadsBackToTheSameBits) {
  std::mt19937_64 random(7);
  const auto any_finite = [&] {
    for (;;) {
      const auto value = std::bit_cast<double>(random());
      if (std::isfinite(value)) return value;
    }
  };
  std::vector<StepRecord> written;
  MetricsLog log({folder_});
  for (int64_t step = 1; step <= 500; ++step) {
    written.push_back({.step = step,
                       .loss = any_finite(),
                       .grad_norm = any_finite(),
                       .learning_rate = any_finite(),
                       .step_seconds = any_finite(),
                       .tokens_per_second = any_finite(),
                       .mfu = std::abs(any_finite()),
                       .communication_wait_seconds = any_finite(),
                       .drive_wait_seconds = any_finite(),
                       .tokens_seen = static_cast<int64_t>(random()),
                       .memory_bytes = static_cast<int64_t>(random())});
    log.step(written.back());
  }
  const auto read = read_metrics(folder_).steps;
  ASSERT_EQ(read.size(), written.size());
  for (size_t i = 0; i < read.size(); ++i) {
    const auto &a = read[i], &b = written[i];
    EXPECT_EQ(a.step, b.step);
    EXPECT_EQ(a.loss, b.loss);
    EXPECT_EQ(a.grad_norm, b.grad_norm);
    EXPECT_EQ(a.learning_rate, b.learning_rate);
    EXPECT_EQ(a.step_seconds, b.step_seconds);
    EXPECT_EQ(a.tokens_per_second, b.tokens_per_second);
    EXPECT_EQ(a.mfu, b.mfu);
    EXPECT_EQ(a.communication_wait_seconds, b.communication_wait_seconds);
    EXPECT_EQ(a.drive_wait_seconds, b.drive_wait_seconds);
    EXPECT_EQ(a.tokens_seen, b.tokens_seen);
    EXPECT_EQ(a.memory_bytes, b.memory_bytes);
  }
}

TEST_F(MetricsLogTest, WhatIsNotFiniteOrUnknownIsNull) {
  MetricsLog log({folder_});
  log.step({.step = 1,
            .loss = std::numeric_limits<double>::quiet_NaN(),
            .grad_norm = std::numeric_limits<double>::infinity()});
  log.validation(1, -std::numeric_limits<double>::infinity());
  EXPECT_THAT(text(), ::testing::HasSubstr(R"("loss":null,"grad_norm":null)"));
  EXPECT_THAT(text(), ::testing::HasSubstr(R"("mfu":null)"));
  const auto history = read_metrics(folder_);
  EXPECT_TRUE(std::isnan(history.steps.at(0).loss));
  EXPECT_EQ(history.steps.at(0).mfu, -1);
  EXPECT_TRUE(std::isnan(history.validation.at(0).second));
}

TEST_F(MetricsLogTest, ResumingKeepsEachStepOnce) {
  {
    MetricsLog log({folder_});
    for (int64_t step = 1; step <= 7; ++step) log.step({.step = step, .validation_loss = 1});
  }
  append_text(R"({"step":8,"lo)");  // a crash in the middle of a line
  MetricsLog log({.run_dir = folder_, .steps_done = 5});
  log.step({.step = 6});
  const auto history = read_metrics(folder_);
  std::vector<int64_t> steps;
  for (const auto& record : history.steps) steps.push_back(record.step);
  EXPECT_THAT(steps, ::testing::ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_EQ(history.validation.size(), 5);
}

TEST_F(MetricsLogTest, AppendingDropsOnlyTheLineThatACrashCut) {
  MetricsLog({folder_}).step({.step = 1});
  append_text(R"({"step":2,"lo)");
  MetricsLog log({.run_dir = folder_, .steps_done = 7});
  log.step({.step = 2});
  EXPECT_EQ(read_metrics(folder_).steps.size(), 2);
}

TEST_F(MetricsLogTest, TruncatingForgetsTheOldRun) {
  MetricsLog({folder_}).step({.step = 1});
  MetricsLog log({folder_});
  EXPECT_EQ(text(), "");
}

TEST_F(MetricsLogTest, AFileOfAnotherKindIsAUserErrorWithItsLine) {
  write_file(folder_ / kMetricsFile, "{\"step\":1,\"validation_loss\":2}\nhello\n");
  for (const auto& act : std::vector<std::function<void()>>{
           [&] { read_metrics(folder_); },
           [&] { MetricsLog({.run_dir = folder_, .steps_done = 1}); }}) {
    try {
      act();
      ADD_FAILURE() << "no error";
    } catch (const UserError& error) {
      EXPECT_THAT(error.what(), ::testing::HasSubstr("metrics.jsonl:2: expected"));
    }
  }
  EXPECT_THROW(read_metrics(folder_ / "missing"), UserError);
}

TEST_F(MetricsLogTest, AFullDiskAndAFileInTheWayAreSystemErrors) {
  write_file(folder_ / "file", "");
  EXPECT_THROW(MetricsLog({folder_ / "file"}), SystemError);
  std::filesystem::create_symlink("/dev/full", folder_ / kMetricsFile);
  MetricsLog log({folder_});
  EXPECT_THROW(log.step({}), SystemError);
}

}  // namespace
}  // namespace tessera::report
