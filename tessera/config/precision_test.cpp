#include "tessera/config/precision.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"

namespace tessera::config {
namespace {

PrecisionSection of(PrecisionPreset preset) {
  const auto name = std::string(text_of(preset));
  return load_run_config("", {{.key = "precision.preset", .value = name}}).config.precision;
}

// FP8-LM's repository, README: "Optimization Level".
TEST(PrecisionPreset, RowsAreThoseOfTheTable) {
  using P = PrecisionPreset;
  const auto row = [](P preset) { return precision_row(of(preset)); };
  EXPECT_EQ(row(P::fp16_amp), (PrecisionRow{"fp16", "fp32", "fp32", "none", "fp32", "fp32+fp32"}));
  EXPECT_EQ(row(P::te), (PrecisionRow{"fp8", "fp32", "fp32", "none", "fp32", "fp32+fp32"}));
  EXPECT_EQ(row(P::msamp_o1), (PrecisionRow{"fp8", "fp8", "fp16", "none", "fp8", "fp32+fp32"}));
  EXPECT_EQ(row(P::msamp_o2), (PrecisionRow{"fp8", "fp8", "fp16", "none", "fp8", "fp8+fp16"}));
  EXPECT_EQ(row(P::msamp_o3), (PrecisionRow{"fp8", "fp8", "fp8", "fp16", "fp8", "fp8+fp16"}));
  EXPECT_EQ(bytes_per_parameter(of(P::fp16_amp)), 16);
  EXPECT_EQ(bytes_per_parameter(of(P::msamp_o1)), 2 + 1 + 8);
  EXPECT_NEAR(bytes_per_parameter(of(P::msamp_o2)), 2 + 1 + 3, 0.04);
  EXPECT_NEAR(bytes_per_parameter(of(P::msamp_o3)), 1 + 2 + 1 + 3, 0.04);
}

TEST(PrecisionPreset, OtherValuesAreNamed) {
  try {
    load_run_config("", {{.key = "precision.preset", .value = "te"},
                         {.key = "precision.matmul", .value = "fp8_row", .origin = "job.yaml:3"}});
    FAIL();
  } catch (const UserError& error) {
    EXPECT_STREQ(error.what(),
                 "job.yaml:3: precision.matmul: expected fp8_delayed, as precision.preset te has "
                 "it, got fp8_row; remove one of them");
  }
}

TEST(PrecisionPreset, WhatIsPrintedIsReadAgain) {
  const auto loaded = load_run_config("", {{.key = "precision.preset", .value = "msamp_o3"}});
  EXPECT_EQ(loaded.origins.at("precision.weights"), "precision.preset msamp_o3");
  EXPECT_EQ(loaded.origins.at("precision.fp8_keep"), "default");
}

}  // namespace
}  // namespace tessera::config
