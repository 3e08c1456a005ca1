// `tessera train` on pairs of answers as a user runs it.
#include <gmock/gmock.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tessera/base/file.h"
#include "tests/program/program.h"
#include "tests/support/temporary_folder.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class PreferenceTest : public ::testing::Test {
 protected:
  /// Pairs in which "yes" is preferred.
  static std::string pairs() {
    std::string rows;
    for (int i = 0; i < 24; ++i) {
      const auto number = std::to_string(i);
      rows += R"({"prompt": "Is )" + number + R"( one? ", "chosen": "yes )" + number +
              R"(", "rejected": "no )" + number + "\"}\n";
    }
    return rows;
  }

  ProgramEnd train(const std::vector<std::string>& more = {}) const {
    std::vector<std::string> arguments{"train", job_, "--data.train=[" + rows_ + "]",
                                       "--train.run_dir=" + run_.string()};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_tessera(arguments);
  }

  std::vector<nlohmann::json> metrics() const {
    std::vector<nlohmann::json> lines;
    const auto text = read_file(run_ / "metrics.jsonl");
    for (size_t begin = 0; begin < text.size(); begin = text.find('\n', begin) + 1) {
      lines.push_back(nlohmann::json::parse(text.substr(begin, text.find('\n', begin) - begin)));
    }
    return lines;
  }

  testing::TemporaryFolder folder_;
  const std::filesystem::path run_ = folder_.path() / "run";
  const std::string rows_ = folder_.write("pairs.jsonl", pairs());
  const std::string job_ = folder_.write("job.yaml", R"(
model: {preset: tiny, vocab_size: 5000, num_layers: 2, dim: 64, ffn_dim: 96, num_heads: 4, num_kv_heads: 2}
data: {tokenizer: tests/fixtures/tokenizers/qwen2_style, seq_len: 96, validation_fraction: 0.25}
preference: {loss: sigmoid}
parallel: {num_ranks: 2, placement: full_shard}
optimizer: {learning_rate: 0.003}
schedule: {type: constant}
checkpoint: {every: 4}
train: {steps: 12, global_batch: 4, sample_tokens: 0}
)");
};

TEST_F(PreferenceTest, LearnsWhatIsPreferredAndGoesOnWithTheStoredReference) {
  const auto end = train();
  ASSERT_EQ(end.exit_code, 0) << end.error;
  EXPECT_THAT(end.out, HasSubstr("reference log-probabilities: one forward over all pairs"));
  EXPECT_THAT(end.out, HasSubstr("data: 24 pairs, "));
  EXPECT_THAT(end.out, HasSubstr("  margin "));
  const auto lines = metrics();
  ASSERT_EQ(lines.size(), 13) << "steps, and the validation at the end";
  EXPECT_NEAR(lines[0]["loss"].get<double>(), std::log(2), 1e-5);
  EXPECT_NEAR(lines[0]["rewards/margins"].get<double>(), 0, 1e-5);
  EXPECT_EQ(lines[11]["rewards/accuracies"], 1);
  EXPECT_EQ(lines[12]["rewards/accuracies"], 1) << "of what was held out";
  EXPECT_LT(lines[12]["validation_loss"].get<double>(), 0.6);

  const auto more = train({"--train.steps=14", "--checkpoint.resume=auto"});
  EXPECT_EQ(more.exit_code, 0) << more.error;
  EXPECT_THAT(more.out, HasSubstr("reference log-probabilities: read from"));
  expect_mistake(train({"--train.steps=16", "--checkpoint.resume=auto", "--data.seq_len=80"}),
                 "reference_logps.json: of other data, another model or other settings");
}

TEST_F(PreferenceTest, OrpoNeedsNoReference) {
  const auto end = train({"--preference.loss=orpo", "--train.steps=2"});
  ASSERT_EQ(end.exit_code, 0) << end.error;
  EXPECT_THAT(end.out, Not(HasSubstr("reference")));
  EXPECT_TRUE(metrics()[0].contains("nll_loss"));
  EXPECT_TRUE(metrics()[0].contains("log_odds_ratio"));
}

TEST_F(PreferenceTest, Mistakes) {
  expect_mistake(
      train({"--preference.loss=ipo", "--preference.label_smoothing=0.1"}),
      "--preference.label_smoothing: has no effect here: it needs preference.loss sigmoid");
  expect_mistake(train({"--preference.loss=none"}), "preference.loss none does not learn");
  expect_mistake(train({"--preference.loss=dpo"}), "preference.loss");
  expect_mistake(train({"--preference.beta=0"}), "preference.beta");
  expect_mistake(train({"--data.seq_len=2"}), "has anything to learn within data.seq_len 2");
}

}  // namespace
}  // namespace tessera
