// `tessera data show` as a user runs it.
#include <gmock/gmock.h>

#include <string>

#include "tessera/base/file.h"
#include "tests/program/program.h"
#include "tests/support/temporary_folder.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class DataCommandTest : public ::testing::Test {
 protected:
  static constexpr const char* kModel = "--model=tests/fixtures/tokenizers/qwen2_style";
  static constexpr const char* kRow =
      R"({"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]})"
      "\n";

  testing::TemporaryFolder folder_;
  const std::string rows_ = folder_.write("rows.jsonl", std::string(kRow) + kRow);
};

TEST_F(DataCommandTest, ShowsWhatIsLearnedAndWhatIsCutOff) {
  const auto end = run_tessera({"data", "show", rows_, kModel, "--rows=1"});
  EXPECT_EQ(end.exit_code, 0) << end.error;
  EXPECT_THAT(end.out, HasSubstr("keys of the first row: messages; shape: messages"));
  EXPECT_THAT(end.out, HasSubstr("2 documents"));
  EXPECT_THAT(end.out, HasSubstr("<|im_start|>assistant\n{+Hello<|im_end|>\n+}"));
  EXPECT_THAT(end.out, Not(HasSubstr("row 2")));
  const auto cut = run_tessera({"data", "show", rows_, kModel, "--seq-len=4", "--tokens"});
  EXPECT_THAT(cut.out, HasSubstr("2 are longer than --seq-len 4"));
  EXPECT_THAT(cut.out, HasSubstr("|<|im_end|>|"));
  EXPECT_THAT(cut.out, Not(HasSubstr("{+Hel"))) << "it is beyond the cut";
  EXPECT_THAT(run_tessera({"data", "show", rows_, kModel, "--learn=all"}).out,
              HasSubstr("{+<|im_start|>"));
}

TEST_F(DataCommandTest, ShowsBothAnswersOfAPair) {
  const auto pairs = folder_.write(
      "pairs.jsonl",
      R"({"prompt": "Sky?", "chosen": [{"role": "assistant", "content": "Blue"}], "rejected": [{"role": "assistant", "content": "It is green"}]})"
      "\n");
  const auto end = run_tessera({"data", "show", pairs, kModel});
  EXPECT_EQ(end.exit_code, 0) << end.error;
  EXPECT_THAT(end.out, HasSubstr("shape: preference"));
  EXPECT_THAT(end.out, HasSubstr("1 pairs"));
  EXPECT_THAT(end.out, HasSubstr("-- row 1, chosen"));
  EXPECT_THAT(end.out, HasSubstr("{+Blue<|im_end|>\n+}"));
  EXPECT_THAT(end.out, HasSubstr("-- row 1, rejected"));
  EXPECT_THAT(end.out, HasSubstr("{+It is green<|im_end|>\n+}"));
  EXPECT_THAT(run_tessera({"data", "show", pairs, kModel, "--seq-len=30"}).out, HasSubstr("[-"));
  const auto equal =
      folder_.write("equal.jsonl", "{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": \"b\"}\n");
  expect_mistake(run_tessera({"data", "show", equal, kModel}),
                 "equal.jsonl:1: chosen and rejected are equal");
}

TEST_F(DataCommandTest, DrawsTheLengths) {
  const auto svg = (folder_.path() / "new" / "lengths.svg").string();
  const auto end = run_tessera({"data", "show", rows_, kModel, "--rows=0", "--svg=" + svg});
  EXPECT_EQ(end.exit_code, 0) << end.error;
  EXPECT_THAT(read_file(svg), HasSubstr("class=\"bar\""));
}

TEST_F(DataCommandTest, ARunTellsItsSharesAndItsSteps) {
  const auto one = folder_.write("one.txt", std::string(16 * 30 + 1, 'a'));
  const auto two = folder_.write("two.txt", std::string(16 * 10 + 1, 'b'));
  const auto job = folder_.write(
      "job.yaml", "model: {preset: micro}\ndata:\n  train: [" + one + ", " + two +
                      "]\n  weights: [1, 3]\n  seq_len: 16\n  validation_fraction: 0\n"
                      "train: {epochs: 0.5, global_batch: 4, sample_tokens: 0, run_dir: " +
                      (folder_.path() / "run").string() + "}\n");
  const auto train = [&](const std::vector<std::string>& options) {
    std::vector<std::string> all{"train", job, "--logging.progress=plain"};
    all.insert(all.end(), options.begin(), options.end());
    return run_tessera(all);
  };
  const auto end = train({});
  EXPECT_EQ(end.exit_code, 0) << end.error;
  EXPECT_THAT(end.out, HasSubstr("data: " + one +
                                 ": 481 tokens, 30 rows; weight 1 (25.0 % of the "
                                 "rows), 0.167 epochs\n"));
  EXPECT_THAT(end.out, HasSubstr("data: " + two +
                                 ": 161 tokens, 10 rows; weight 3 (75.0 % of the "
                                 "rows), 1.5 epochs\n"));
  EXPECT_THAT(end.out, HasSubstr("data: 0.5 epochs of 40 rows: 5 steps of 4 rows\n"));
  EXPECT_THAT(end.out, HasSubstr("5/5"));
  expect_mistake(train({"--data.weights=1,2,3"}),
                 "--data.weights: expected one for each entry of data.train, at least two, got 3 "
                 "for 2");
  expect_mistake(train({"--train.steps=7"}),
                 "--train.steps: has no effect here: it needs train.epochs 0");
  expect_mistake(train({"--schedule.warmup_steps=6", "--checkpoint.overwrite=true"}),
                 "schedule.warmup_steps: expected at most 5, the steps of train.epochs 0.5, got 6");
}

TEST_F(DataCommandTest, BadInput) {
  expect_mistake(run_tessera({"data", "show", rows_}), "--model is required");
  expect_mistake(run_tessera({"data"}), "subcommand");
  expect_mistake(run_tessera({"data", "show", folder_.path() / "no.jsonl", kModel}), "no.jsonl");
  expect_mistake(run_tessera({"data", "show", rows_, kModel, "--shape=rows"}), "--shape");
  expect_mistake(run_tessera({"data", "show", rows_, kModel, "--chat-template=none"}),
                 "--chat-template: none");
  expect_mistake(run_tessera({"data", "show", rows_, kModel, "--rows=-1"}),
                 "--rows: expected 0 or more, got -1");
  const auto bad = folder_.write("bad.jsonl", std::string(kRow) + "{\"messages\": []}\n");
  expect_mistake(run_tessera({"data", "show", bad, kModel}),
                 "bad.jsonl:2: expected at least one message, got none; set --skip-bad-lines");
  EXPECT_THAT(run_tessera({"data", "show", bad, kModel, "--skip-bad-lines"}).out,
              HasSubstr("1 rows skipped"));
  const auto other = folder_.write("other.jsonl", "{\"question\": 1}\n");
  expect_mistake(run_tessera({"data", "show", other, kModel}), "got question; set --shape");
}

/// Text is read by bytes, which nobody means who names a tokenizer.
TEST_F(DataCommandTest, TextBesideATokenizerIsRefused) {
  const auto notes = folder_.write("notes.txt", std::string(500, 'a'));
  const auto job = folder_.write("job.yaml",
                                 "model: {preset: micro}\ndata: {seq_len: 16}\n"
                                 "train: {steps: 1, global_batch: 2, sample_tokens: 0, run_dir: " +
                                     (folder_.path() / "run").string() + "}\n");
  const auto tokenizer = "--data.tokenizer=" + std::string(kModel).substr(8);
  expect_mistake(run_tessera({"train", job, "--data.train=[" + notes + "]", tokenizer}),
                 "notes.txt: text would be read as bytes, not by the tokenizer of ");
  expect_mistake(run_tessera({"train", job, "--data.train=[" + notes + "," + rows_ + "]"}),
                 "rows.jsonl: rows of a data set beside " + notes);
  const auto asked = run_tessera(
      {"train", job, "--data.train=[" + notes + "," + rows_ + "]", "--data.format=text"});
  EXPECT_EQ(asked.exit_code, 0) << asked.error;
}

}  // namespace
}  // namespace tessera
