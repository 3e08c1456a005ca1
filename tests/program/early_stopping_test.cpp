// A run that ends because it no longer gets better, as a user sees it.
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tessera/base/file.h"
#include "tests/program/program.h"
#include "tests/support/temporary_folder.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

class EarlyStoppingTest : public ::testing::Test {
 protected:
  ProgramEnd train(const std::string& run, std::vector<std::string> more) const {
    more.insert(more.begin(), {"train", job_, "--data.train=[" + text_ + "]",
                               "--train.run_dir=" + (folder_.path() / run).string()});
    return run_tessera(more);
  }
  nlohmann::json summary(const std::string& run) const {
    return nlohmann::json::parse(read_file(folder_.path() / run / "summary.json"));
  }

  static std::string text() {
    std::string text;
    for (int i = 0; i < 400; ++i) text += "line " + std::to_string(i * 7919 % 1000) + "\n";
    return text;
  }

  testing::TemporaryFolder folder_;
  const std::string text_ = folder_.write("text.txt", text());
  // Nothing gets better by 5, so the first validation is the last that counts.
  const std::string job_ = folder_.write("job.yaml", R"(
model: {preset: tiny, num_layers: 1, dim: 32, ffn_dim: 48, num_heads: 2, num_kv_heads: 2}
data: {format: text, seq_len: 32, validation_fraction: 0.1}
parallel: {num_ranks: 2}
checkpoint: {every: 2}
train: {steps: 20, global_batch: 4, sample_tokens: 0, validate_every: 1, early_stopping_patience: 3, early_stopping_threshold: 5}
)");
};

TEST_F(EarlyStoppingTest, ARunThatGetsNoBetterEndsWithACheckpointAndSaysWhy) {
  const auto end = train("run", {});
  ASSERT_EQ(end.exit_code, 0) << end.error;
  EXPECT_THAT(end.out,
              HasSubstr("ended at step 4 of 20: 3 validations without a better loss than "));
  EXPECT_THAT(end.out, HasSubstr("saved step 4"));
  EXPECT_EQ(summary("run")["steps"], 4);
  EXPECT_EQ(summary("run")["best_validation"]["step"], 4) << "better, but not by 5";
  EXPECT_THAT(summary("run")["ended_early"].get<std::string>(), HasSubstr("ended at step 4"));
  const auto again = train("run", {"--checkpoint.resume=auto"});
  EXPECT_EQ(again.exit_code, 0) << again.error;
  EXPECT_THAT(again.out, HasSubstr("step 4 of 20: nothing left to do"));
}

TEST_F(EarlyStoppingTest, AResumedRunGoesOnCounting) {
  const auto first = train("cut", {"--train.steps=2"});
  ASSERT_EQ(first.exit_code, 0) << first.error;
  EXPECT_TRUE(summary("cut")["ended_early"].is_null());
  const auto end = train("cut", {"--checkpoint.resume=auto"});
  EXPECT_EQ(end.exit_code, 0) << end.error;
  EXPECT_THAT(end.out, HasSubstr("ended at step 4 of 20"));
}

TEST_F(EarlyStoppingTest, Mistakes) {
  expect_mistake(train("none", {"--train.validate_every=0"}), "train.validate_every");
  expect_mistake(train("none", {"--train.early_stopping_patience=0"}),
                 "train.early_stopping_threshold: has no effect here");
}

}  // namespace
}  // namespace tessera
