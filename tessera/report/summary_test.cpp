#include "tessera/report/summary.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace tessera::report {
namespace {

using ::testing::HasSubstr;

RunSummary example() {
  return {.run_dir = "runs/tiny",
          .world_size = 2,
          .parameters = 58'100'000,
          .steps = 1200,
          .total_seconds = 95.2,
          .seconds_to_first_step = 2.1,
          .median_step_seconds = 0.352,
          .tokens_per_second = 5812.4,
          .mfu = 0.641,
          .matmul_peak_flops = 2.04e11,
          .matmul_peak_note = "measured, fp32",
          .communication_wait_share = 0.031,
          .first_loss = 7.6254,
          .last_loss = 2.125,
          .validation_loss = 2.25,
          .peak_memory_bytes = {429'916'160, 430'000'000},
          .sample = "#include <a>\n\tint x;\x1b[31m\xff é"};
}

TEST(FormatSummary, IsAnAlignedBlock) {
  EXPECT_EQ(format_summary(example()),
            "  run          1,200 steps on 2 ranks in 1 min 35 s\n"
            "  model        58.1 M parameters\n"
            "  loss         7.6254 -> 2.1250, validation 2.2500 (perplexity 9.488)\n"
            "  first step   2.1 s after launch\n"
            "  median step  352 ms\n"
            "  speed        5,812 tokens/s\n"
            "  MFU          64.1 % of 204 GFLOP/s (measured, fp32)\n"
            "  waiting      3.1 % of step time for communication\n"
            "  peak memory  410.0 MiB, 410.1 MiB (by rank)\n"
            "  files        runs/tiny\n"
            "  sample       #include <a>\n"
            "                 int x;\\x1b[31m\\xff é\n");
}

TEST(FormatSummary, ALossOverPairsHasNoPerplexity) {
  auto summary = example();
  summary.validation_figures = {{"rewards/chosen", 1, ""}, {"rewards/margins", 0.5, "margin"}};
  summary.loss_is_by_token = false;
  EXPECT_NE(format_summary(summary).find(", validation 2.2500 (margin 0.5)\n"), std::string::npos);
  summary.loss_is_by_token = true;
  EXPECT_NE(format_summary(summary).find(", validation 2.2500 (perplexity 9.488, margin 0.5)\n"),
            std::string::npos);
}

TEST(FormatSummary, BytesStandBesideWhatWasPredicted) {
  RunSummary summary;
  summary.memory = {{"gradients", 3 << 20, 2 << 20}, {"buffers", -1, 1 << 20}};
  EXPECT_EQ(format_summary(summary).find("traffic"), std::string::npos);
  summary.traffic = {{"tp", 5 << 20, 4 << 20}};
  const auto text = format_summary(summary);
  EXPECT_NE(text.find("    gradients  2.0 MiB (predicted 3.0 MiB)\n"
                      "    buffers    1.0 MiB\n"
                      "  traffic      of rank 0 in a step\n"
                      "    tp         4.0 MiB (predicted 5.0 MiB)\n"),
            std::string::npos)
      << text;
  const auto json = nlohmann::json::parse(to_json(summary));
  EXPECT_EQ(json["memory"]["buffers"]["predicted"], nullptr);
  EXPECT_EQ(json["traffic"]["tp"]["measured"], 4 << 20);
}

TEST(FormatSummary, SampleCannotSteerTheTerminal) {
  RunSummary summary;
  for (int a = 0; a < 256; ++a) {
    for (int b = 0; b < 256; b += 5) {
      summary.sample = {static_cast<char>(a), static_cast<char>(b), 'x'};
      for (const char c : format_summary(summary)) {
        const auto byte = static_cast<unsigned char>(c);
        ASSERT_TRUE(byte == '\n' || (byte >= 0x20 && byte != 0x7F)) << a << " " << b;
      }
    }
  }
  summary.sample =
      "\xc2\x9b"
      "31m \xed\xa0\x80 \xe2\x82";  // a C1 control, half a surrogate, half a euro sign
  EXPECT_THAT(format_summary(summary), HasSubstr("\\xc2\\x9b31m \\xed\\xa0\\x80 \\xe2\\x82\n"));
}

TEST(FormatSummary, NamesTheExtremesOfManyRanks) {
  RunSummary summary;
  summary.peak_memory_bytes = {2 << 20, 3 << 20, 1 << 20, 2 << 20, 2 << 20};
  EXPECT_THAT(format_summary(summary), HasSubstr("1.0 MiB (rank 2) to 3.0 MiB (rank 1)"));
  EXPECT_THAT(format_summary(summary), HasSubstr("MFU          unknown"));
}

TEST(FormatSummary, WhatHadNothingLeftToDoHasNoFirstStep) {
  auto summary = example();
  summary.seconds_to_first_step = 0;
  EXPECT_EQ(format_summary(summary).find("first step"), std::string::npos);
  EXPECT_TRUE(nlohmann::json::parse(to_json(summary))["seconds_to_first_step"].is_null());
}

TEST(SummaryJson, HoldsTheSame) {
  const auto json = nlohmann::json::parse(to_json(example()));
  EXPECT_EQ(json["median_step_seconds"], 0.352);
  EXPECT_EQ(json["peak_memory_bytes"], (std::vector<int64_t>{429'916'160, 430'000'000}));
  EXPECT_EQ(json["mfu"], 0.641);
  const auto empty = nlohmann::json::parse(to_json({.last_loss = NAN}));
  EXPECT_TRUE(empty["mfu"].is_null());
  EXPECT_TRUE(empty["last_loss"].is_null());
  EXPECT_TRUE(empty["validation_loss"].is_null());
}

TEST(StepTotals, LeavesOutTheFirstAndWeighsByTime) {
  const std::vector<StepRecord> steps{
      {.step = 1, .loss = 8, .step_seconds = 100, .tokens_per_second = 1, .mfu = 0.01},
      {.step = 2,
       .loss = 7,
       .step_seconds = 1,
       .tokens_per_second = 400,
       .mfu = 0.4,
       .communication_wait_seconds = 0.25},
      {.step = 3,
       .loss = 6,
       .step_seconds = 3,
       .tokens_per_second = 200,
       .mfu = 0.2,
       .communication_wait_seconds = 0.75,
       .drive_wait_seconds = 2}};
  StepTotals totals;
  for (const auto& record : steps) totals.add(record);
  RunSummary summary;
  totals.fill(summary);
  EXPECT_EQ(summary.steps, 3);
  EXPECT_EQ(summary.first_loss, 8);
  EXPECT_EQ(summary.last_loss, 6);
  EXPECT_EQ(summary.median_step_seconds, 2);
  EXPECT_EQ(summary.tokens_per_second, 250);
  EXPECT_DOUBLE_EQ(summary.mfu, 0.25);
  EXPECT_EQ(summary.communication_wait_share, 0.25);
  EXPECT_EQ(summary.drive_wait_share, 0.5);
  EXPECT_THAT(format_summary(summary),
              HasSubstr("25.0 % of step time for communication, 50.0 % for drives\n"));

  const std::vector<StepValue> losses{{1, 8}, {2, 7}, {3, 6}};
  EXPECT_EQ(totals.losses(), losses);

  StepTotals one;
  one.add(steps.front());
  RunSummary single;
  one.fill(single);
  EXPECT_EQ(single.median_step_seconds, 100);
}

}  // namespace
}  // namespace tessera::report
