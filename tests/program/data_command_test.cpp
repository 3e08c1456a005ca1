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

TEST_F(DataCommandTest, BadInput) {
  expect_mistake(run_tessera({"data", "show", rows_}), "--model is required");
  expect_mistake(run_tessera({"data"}), "subcommand");
  expect_mistake(run_tessera({"data", "show", folder_.path() / "no.jsonl", kModel}), "no.jsonl");
  expect_mistake(run_tessera({"data", "show", rows_, kModel, "--shape=rows"}), "--shape");
  expect_mistake(run_tessera({"data", "show", rows_, kModel, "--chat-template=none"}),
                 "chat_template: none");
}

}  // namespace
}  // namespace tessera
