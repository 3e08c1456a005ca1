// A run that ends because it no longer gets better, as a user sees it.
#include <gmock/gmock.h>

#include <csignal>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
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
  ProgramEnd train(const std::string& run, std::vector<std::string> more,
                   const ProgramOptions& options = {}) const {
    more.insert(more.begin(), {"train", job_, "--data.train=[" + text_ + "]",
                               "--train.run_dir=" + (folder_.path() / run).string()});
    return run_tessera(more, options);
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

TEST_F(EarlyStoppingTest, ARunKilledOnTheWayEndsWhereItWouldHave) {
  const std::vector<std::string> options{"--optimizer.learning_rate=0.05", "--checkpoint.every=3",
                                         "--train.steps=2000", "--train.early_stopping_patience=6",
                                         "--train.early_stopping_threshold=0.05"};
  const auto whole = train("whole", options);
  ASSERT_EQ(whole.exit_code, 0) << whole.error;
  const int64_t last = summary("whole")["steps"];
  ASSERT_GT(last, 9) << "the kill below would come too late";
  ASSERT_LT(last, 2000);

  const auto checkpoints = folder_.path() / "killed" / "checkpoints";
  const auto killed =
      train("killed", options, {.killed_at = (checkpoints / "step_00000003").string()});
  ASSERT_EQ(killed.exit_code, 128 + SIGKILL) << killed.error;
  auto more = options;
  more.emplace_back("--checkpoint.resume=auto");
  const auto resumed = train("killed", more);
  ASSERT_EQ(resumed.exit_code, 0) << resumed.error;
  EXPECT_THAT(resumed.out, HasSubstr("resumed from "));
  for (const auto* figure : {"steps", "best_validation", "ended_early"})
    EXPECT_EQ(summary("killed")[figure], summary("whole")[figure]) << figure;
}

/// Of a rate that grows far too high the losses fall first and then rise tenfold: the best is an early one.
TEST_F(EarlyStoppingTest, TheBestIsKeptWhereverItIs) {
  const auto steps_kept = [&](const std::string& run) {
    std::set<std::string> names;
    for (const auto& entry :
         std::filesystem::directory_iterator(folder_.path() / run / "checkpoints"))
      if (entry.is_directory()) names.insert(entry.path().filename().string());
    return names;
  };
  const auto step_name = [](int64_t step) {
    auto name = std::to_string(step);
    return "step_" + std::string(8 - name.size(), '0') + name;
  };
  const std::vector<std::string> options{"--train.early_stopping_patience=0",
                                         "--train.early_stopping_threshold=0",
                                         "--checkpoint.every=0",
                                         "--checkpoint.keep_last=1",
                                         "--checkpoint.keep_best=1",
                                         "--optimizer.learning_rate=3",
                                         "--schedule.type=constant",
                                         "--schedule.warmup_steps=8"};
  const auto end = train("best", options);
  ASSERT_EQ(end.exit_code, 0) << end.error;
  const int64_t best = summary("best")["best_validation"]["step"];
  ASSERT_LT(best, 20);
  EXPECT_EQ(steps_kept("best"), (std::set<std::string>{step_name(best), step_name(20)}));
  // What an earlier part of the run did best stays the best.
  auto more = options;
  more.insert(more.end(), {"--train.steps=24", "--checkpoint.resume=auto"});
  const auto resumed = train("best", more);
  ASSERT_EQ(resumed.exit_code, 0) << resumed.error;
  ASSERT_EQ(summary("best")["best_validation"]["step"], best);
  EXPECT_EQ(steps_kept("best"), (std::set<std::string>{step_name(best), step_name(24)}));
}

TEST_F(EarlyStoppingTest, Mistakes) {
  expect_mistake(train("none", {"--train.validate_every=0"}), "train.validate_every");
  expect_mistake(train("none", {"--train.early_stopping_patience=0"}),
                 "train.early_stopping_threshold: has no effect here");
}

}  // namespace
}  // namespace tessera
