// `tessera finetune` as a user runs it, on a model that learned nothing.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tessera/base/file.h"
#include "tests/program/program.h"
#include "tests/support/temporary_folder.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;
using Arguments = std::vector<std::string>;

constexpr const char* kChatTemplate =
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

/// A model's folder and forty conversations, of which two are held out.
class FinetuneTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder = new testing::TemporaryFolder();
    const auto job = folder->write("base.yaml", R"(
model: {preset: tiny, vocab_size: 5000, num_layers: 2, dim: 64, ffn_dim: 96, num_heads: 4, num_kv_heads: 2}
schedule: {warmup_steps: 0}
train: {steps: 1, global_batch: 1, sample_tokens: 0}
)");
    const auto text = folder->write("text.jsonl", "{\"text\": \"a text of some words\"}\n");
    const auto made =
        run_tessera({"train", job, "--data.train=[" + text + "]",
                     "--data.tokenizer=tests/fixtures/tokenizers/qwen2_style", "--data.seq_len=64",
                     "--data.validation_fraction=0", "--train.run_dir=" + path("base_run")});
    ASSERT_EQ(made.exit_code, 0) << made.error;
    const auto exported =
        run_tessera({"export", path("base_run"), path("base"), "--to=huggingface", "--no-compare"});
    ASSERT_EQ(exported.exit_code, 0) << exported.error;
    write_file(path("base/chat_template.jinja"), kChatTemplate);
    std::string rows;
    for (int i = 0; i < 40; ++i) {
      rows += fmt::format(
          R"({{"messages": [{{"role": "user", "content": "Hi {0}"}}, {{"role": "assistant", "content": "Hello"}}]}})"
          "\n",
          i);
    }
    folder->write("chats.jsonl", rows);
  }
  static void TearDownTestSuite() { delete folder; }

  static std::string path(const std::string& name) { return (folder->path() / name).string(); }

  static ProgramEnd finetune(Arguments arguments) {
    arguments.insert(arguments.begin(), {"finetune", path("base")});
    return run_tessera(arguments);
  }

  static testing::TemporaryFolder* folder;
};
testing::TemporaryFolder* FinetuneTest::folder = nullptr;

TEST_F(FinetuneTest, ShowsTheJobAndDoesNothing) {
  const auto end =
      finetune({path("chats.jsonl"), "--dry-run", "--run-dir=" + path("dry"), "--train.epochs=2"});
  EXPECT_EQ(end.exit_code, 0) << end.error;
  EXPECT_THAT(end.out, HasSubstr("40 documents"));
  EXPECT_THAT(end.out, HasSubstr("<- taken"));
  EXPECT_THAT(end.out, HasSubstr("  type: lora\n"));
  EXPECT_THAT(end.out, HasSubstr("  targets: [\"all-linear\"]"));
  EXPECT_THAT(end.out, HasSubstr("  epochs: 2                           # command line\n"));
  EXPECT_FALSE(fs::exists(path("dry")));
}

TEST_F(FinetuneTest, AModelWithExpertsIsQuantisedAsOthersAre) {
  const auto of_mixture = [](Arguments more) {
    more.insert(more.begin(),
                {"finetune", "tests/fixtures/families/qwen2_moe", path("chats.jsonl"), "--dry-run",
                 "--data.tokenizer=" + path("base"), "--run-dir=" + path("mixture")});
    return run_tessera(more);
  };
  const auto found = of_mixture({});
  EXPECT_EQ(found.exit_code, 0) << found.error;
  EXPECT_THAT(found.out, HasSubstr("  type: lora\n"));
  EXPECT_THAT(found.out, HasSubstr("qlora"));
  const auto asked = of_mixture({"--qlora"});
  EXPECT_EQ(asked.exit_code, 0) << asked.error;
  EXPECT_THAT(asked.out, HasSubstr("  weights: nf4_double "));
}

TEST_F(FinetuneTest, RanksAnswerWhatIsHeldOutBeforeAndAfterAsOneDoes) {
  const auto answers = [&](const std::string& name, const Arguments& more) {
    Arguments arguments{path("chats.jsonl"),        "--full",
                        "--run-dir=" + path(name),  "--optimizer.learning_rate=0.01",
                        "--precision.compute=fp32", "--epochs=4",
                        "--train.global_batch=2",   "--seq-len=64"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const auto end = finetune(arguments);
    EXPECT_EQ(end.exit_code, 0) << end.error;
    EXPECT_THAT(end.out, HasSubstr("Now try:\n  tessera chat " + path(name)));
    return nlohmann::json::parse(read_file(path(name + "/summary.json")));
  };
  const auto one = answers("one", {});
  ASSERT_EQ(one["answers"].size(), 2U);
  for (const auto& answer : one["answers"]) {
    EXPECT_THAT(answer["prompt"].get<std::string>(), HasSubstr("Hi "));
    EXPECT_THAT(answer["expected"].get<std::string>(), HasSubstr("Hello"));
    EXPECT_THAT(answer["before"].get<std::string>(), Not(HasSubstr("Hello")));
    EXPECT_THAT(answer["after"].get<std::string>(), HasSubstr("Hello"));
  }
  EXPECT_GT(one["validation_loss_on_start"].get<double>(), 8);
  EXPECT_LT(one["validation_loss"].get<double>(), 1);
  const auto sharded = answers("two", {"-n", "2"});
  EXPECT_EQ(sharded["answers"], one["answers"]);
  EXPECT_NEAR(sharded["validation_loss_on_start"].get<double>(),
              one["validation_loss_on_start"].get<double>(), 1e-5);
  const auto stages =
      answers("stages", {"-n", "2", "--parallel.placement=replicate", "--parallel.pp=2"});
  EXPECT_EQ(stages["answers"], one["answers"]);
}

TEST_F(FinetuneTest, MistakesAreALine) {
  const auto mistake = [&](const Arguments& arguments, const std::string& line) {
    const auto end = finetune(arguments);
    EXPECT_EQ(end.exit_code, 2) << end.error;
    EXPECT_THAT(end.error, HasSubstr(line));
  };
  mistake({path("chats.jsonl"), "--lora", "--full"}, "exclude one another");
  mistake({path("none.jsonl")}, "none.jsonl");
  mistake({path("chats.jsonl"), "--dpo"}, "--dpo needs rows with chosen and rejected answers");
  mistake({path("chats.jsonl"), "--memory=lots"}, "--memory: expected bytes with a unit");
  mistake({path("chats.jsonl"), "--full", "--memory=1MB"}, "--full needs ");
  mistake({path("chats.jsonl"), "--model.pth=x"}, "model.pth");
  mistake({path("chats.jsonl"), "-n", "0", "--dry-run"}, "-1, or at least 1");
  // What training refuses leaves nothing.
  mistake({path("chats.jsonl"), "--run-dir=" + path("new/refused"), "--full",
           "--optimizer.in_backward=true", "--optimizer.max_grad_norm=1"},
          "optimizer.in_backward");
  EXPECT_FALSE(fs::exists(path("new")));
  fs::create_directory(path("kept"));
  mistake({path("chats.jsonl"), "--run-dir=" + path("kept"), "--full",
           "--optimizer.in_backward=true", "--optimizer.max_grad_norm=1"},
          "optimizer.in_backward");
  EXPECT_TRUE(fs::is_empty(path("kept")));
  mistake({path("chats.jsonl"), "--run-dir=" + path("base_run")}, "has a run already");
}

}  // namespace
}  // namespace tessera
