// `tessera generate` and `tessera chat` as a user runs them, on a model that was trained for a moment.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <sys/wait.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tessera/base/file.h"
#include "tests/program/program.h"
#include "tests/program/terminal.h"
#include "tests/support/temporary_folder.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using Arguments = std::vector<std::string>;

constexpr const char* kTokenizer = "tests/fixtures/tokenizers/qwen2_style";
constexpr const char* kTemplate =
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

class AnswerTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder = new testing::TemporaryFolder();
    const auto chat_template = folder->write("chat.jinja", kTemplate);
    const std::string row =
        R"({"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]})"
        "\n";
    const auto rows = folder->write("rows.jsonl", row + row);
    const auto job = folder->write("job.yaml", R"(
model: {preset: tiny, vocab_size: 5000, num_layers: 2, dim: 64, ffn_dim: 96, num_heads: 4, num_kv_heads: 2}
parallel: {num_ranks: 2, placement: full_shard}
optimizer: {learning_rate: 0.01}
schedule: {warmup_steps: 0}
train: {steps: 20, global_batch: 2}
)");
    const auto end = run_tessera(
        {"train", job, "--data.train=[" + rows + "]", std::string("--data.tokenizer=") + kTokenizer,
         "--data.chat_template=" + chat_template, "--data.seq_len=64", "--data.packing=false",
         "--data.validation_fraction=0", "--train.run_dir=" + run()});
    ASSERT_EQ(end.exit_code, 0) << end.error;
  }
  static void TearDownTestSuite() { delete folder; }

  static std::string run() { return folder->path() / "run"; }
  static ProgramEnd tessera(Arguments arguments, const std::string& input = "") {
    return run_tessera(arguments, {.input = input});
  }

  static testing::TemporaryFolder* folder;
};
testing::TemporaryFolder* AnswerTest::folder = nullptr;

TEST_F(AnswerTest, AConversationIsAnsweredAsLearned) {
  const auto file = folder->path() / "saved.jsonl";
  const auto end = tessera({"chat", run(), "--temperature=0"},
                           "Hi\n/reset\nHi\n/save " + file.string() + "\n/exit\nHi\n");
  EXPECT_EQ(end.exit_code, 0) << end.error;
  EXPECT_THAT(end.out, HasSubstr("Hello\nHello\nsaved 2 messages\n"));
  const auto row = nlohmann::json::parse(read_file(file));
  EXPECT_EQ(row["messages"][1]["content"], "Hello");
  // What was saved can be trained on.
  const auto again =
      tessera({"chat", run(), "--temperature=0"}, "Hi\n/save " + file.string() + "\n");
  EXPECT_EQ(again.exit_code, 2);
  EXPECT_THAT(again.error, HasSubstr("is there already"));
}

TEST_F(AnswerTest, SeveralRanksAnswerAsOneDoes) {
  const auto one = tessera({"chat", run(), "--seed=3", "--max-new-tokens=20"}, "Hi\nHi\n");
  const auto two =
      tessera({"chat", run(), "--seed=3", "--max-new-tokens=20", "-n", "2"}, "Hi\nHi\n");
  EXPECT_EQ(one.exit_code, 0) << one.error;
  EXPECT_EQ(two.exit_code, 0) << two.error;
  EXPECT_EQ(one.out, two.out);
}

TEST_F(AnswerTest, ATextGoesOn) {
  const Arguments options{"--temperature=0", "--max-new-tokens=5"};
  const auto with = [&](Arguments arguments) {
    arguments.insert(arguments.end(), options.begin(), options.end());
    return arguments;
  };
  const auto given = tessera(with({"generate", run(), "<|im_start|>assistant\n"}));
  EXPECT_EQ(given.exit_code, 0) << given.error;
  EXPECT_THAT(given.out, HasSubstr("Hello"));
  EXPECT_EQ(tessera(with({"generate", run()}), "<|im_start|>assistant\n").out, given.out);
  const auto echoed = tessera(with({"generate", run(), "<|im_start|>assistant\n", "--echo"}));
  EXPECT_EQ(echoed.out, "<|im_start|>assistant\n" + given.out);
  const auto stopped = tessera(with({"generate", run(), "<|im_start|>assistant\n", "--stop=lo"}));
  EXPECT_EQ(stopped.out, "Hel\n");
}

TEST_F(AnswerTest, AnExportAnswersAsTheRunItIsOf) {
  const auto exported = (folder->path() / "exported").string();
  const auto done = tessera({"export", run(), exported, "--to=huggingface"});
  ASSERT_EQ(done.exit_code, 0) << done.error;
  EXPECT_THAT(done.out, HasSubstr("compared with the source on 3 prompts"));
  EXPECT_THAT(done.out, HasSubstr("logits differ by 0 at most"));
  EXPECT_THAT(done.out, HasSubstr("the same at 100.0 %"));
  // With the job's tokenizer and template.
  const auto end = tessera({"chat", exported, "--temperature=0"}, "Hi\n");
  EXPECT_EQ(end.out, tessera({"chat", run(), "--temperature=0"}, "Hi\n").out) << end.error;
  EXPECT_EQ(read_file(fs::path(exported) / "chat_template.jinja"), kTemplate);
  for (const auto* file : {"chat_template.jinja", "tokenizer.json", "tokenizer_config.json"})
    fs::remove(fs::path(exported) / file);
  expect_mistake(tessera({"chat", exported}, "Hi\n"), "has no tokenizer");
  expect_mistake(
      tessera({"chat", exported, "--tokenizer=tests/fixtures/tokenizers/gpt2_style"}, "Hi\n"),
      "has no chat template");
}

TEST_F(AnswerTest, AnExportOfNaNIsTold) {
  const auto exported = (folder->path() / "nan").string();
  ASSERT_EQ(tessera({"export", run(), exported, "--to=huggingface", "--no-compare"}).exit_code, 0);
  std::fstream stream(fs::path(exported) / "model.safetensors",
                      std::ios::in | std::ios::out | std::ios::binary);
  stream.seekp(-4, std::ios::end).write("\xff\xff\xff\xff", 4);
  stream.close();
  const auto again = (folder->path() / "nan_again").string();
  const auto end = tessera({"export", exported, again, "--to=huggingface"});
  EXPECT_EQ(end.exit_code, 2);
  EXPECT_THAT(end.error, HasSubstr("nan: its logits are NaN or infinity"));
}

TEST_F(AnswerTest, AnExportHasACardThatSaysWhatTheRunSays) {
  const auto exported = (folder->path() / "with_card").string();
  ASSERT_EQ(tessera({"export", run(), exported, "--to=huggingface", "--no-compare"}).exit_code, 0);
  const auto card = read_file(fs::path(exported) / "README.md");
  EXPECT_THAT(card, ::testing::StartsWith("---\nlibrary_name: transformers\n"));
  EXPECT_THAT(card, HasSubstr("tags:\n- tessera\n---\n\n# with_card\n"));
  EXPECT_THAT(card, HasSubstr("| optimizer steps | 20 |"));
  const auto summary = nlohmann::json::parse(read_file(fs::path(run()) / "summary.json"));
  EXPECT_THAT(card,
              HasSubstr(fmt::format("{:.4f} at step 20", summary["last_loss"].get<double>())));
  EXPECT_THAT(card, HasSubstr("  learning_rate: 0.01"));
  EXPECT_THAT(card, ::testing::Not(HasSubstr("base_model")));
}

TEST_F(AnswerTest, AGgufFileIsComparedAndHasAModelfile) {
  for (const auto* type : {"f32", "q8_0", "q4_k_m"}) {
    const auto file = folder->path() / (std::string(type) + ".gguf");
    const auto done = tessera({"export", run(), file.string(), "--to=gguf", "--type", type});
    ASSERT_EQ(done.exit_code, 0) << done.error;
    EXPECT_THAT(done.out, HasSubstr("compared with the source on 3 prompts"));
    const bool exact = std::string_view(type) == "f32", mixed = std::string_view(type) == "q4_k_m";
    EXPECT_EQ(exact, done.out.find("logits differ by 0 at most") != std::string::npos) << done.out;
    EXPECT_EQ(mixed, done.out.find("no multiple of 256") != std::string::npos) << done.out;
    const auto modelfile = read_file(file.parent_path() / (std::string(type) + ".Modelfile"));
    EXPECT_THAT(modelfile, HasSubstr("FROM ./" + file.filename().string() + "\n"));
  }
  // It goes on as the run does, where config.json says what it is.
  const auto file = (folder->path() / "f32.gguf").string();
  const auto back = (folder->path() / "back").string();
  const auto exported = (folder->path() / "with_config").string();
  ASSERT_EQ(tessera({"export", run(), exported, "--to=huggingface", "--no-compare"}).exit_code, 0);
  const auto done = tessera(
      {"checkpoint", "convert", file, "-o", back, "--to=huggingface", "--config", exported});
  ASSERT_EQ(done.exit_code, 0) << done.error;
  EXPECT_EQ(tessera({"checkpoint", "diff", back, exported}).exit_code, 0);
}

TEST_F(AnswerTest, ATrainedModelIsExamined) {
  const auto rows = (folder->path() / "rows.jsonl").string();
  const auto questions = folder->write("questions.jsonl", R"(
{"question": "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n", "choices": ["Nothing at all", "Hello"], "answer": 1}
{"query": "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n", "choices": {"text": ["Hello", "Sixteen"], "label": ["A", "B"]}, "answerKey": "A"}
)");
  const auto text = folder->write("plain.txt", "Nobody has learned these words by heart.");
  const auto end = tessera({"evaluate", run(), rows, questions, text, "--json"});
  ASSERT_EQ(end.exit_code, 0) << end.error;
  const auto all = nlohmann::json::parse(end.out);
  EXPECT_EQ(all[rows]["tokens"], 2 * 5) << "Hello in three, the end of the turn, a line feed";
  EXPECT_LT(all[rows]["perplexity"].get<double>(), 3);
  EXPECT_EQ(all[questions]["acc"], 1);
  EXPECT_EQ(all[questions]["acc_norm"], 1);
  EXPECT_GT(all[text]["loss"].get<double>(), 3);
  EXPECT_GT(all[text]["bits_per_byte"].get<double>(), 1);
  const auto two = tessera({"evaluate", run(), rows, questions, "-n", "2"});
  EXPECT_EQ(two.exit_code, 0) << two.error;
  EXPECT_THAT(two.out, HasSubstr("2 questions: acc 1.0000 +- 0.0000, acc_norm 1.0000"));

  const auto wrong =
      folder->write("wrong.jsonl", R"({"question": "a", "choices": ["b", "c"], "answer": 2})");
  expect_mistake(tessera({"evaluate", run(), wrong}),
                 "wrong.jsonl:1: the answer: expected a place from 0 to 1");
  expect_mistake(tessera({"evaluate", run(), "nowhere.txt"}), "nowhere.txt: no such file");
  expect_mistake(tessera({"evaluate", run(), folder->write("empty.txt", "")}), "empty");
  expect_mistake(tessera({"evaluate", run(), text, "--stride=9", "--seq-len=8"}),
                 "--stride: expected at most the 8 tokens");
  expect_mistake(tessera({"evaluate", run(), folder->path().string()}),
                 "expected a file, got a folder");
}

TEST_F(AnswerTest, BrokenRowsAreNamedOrCountedAndFiguresGoToAFile) {
  const std::string row =
      R"({"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]})"
      "\n";
  const auto rows = folder->write("some_bad.jsonl", row + "{\"messages\": []}\n{\n" + row);
  const auto empty = folder->write("empty.jsonl", row + "{\"messages\": []}\n");
  expect_mistake(tessera({"evaluate", run(), empty}),
                 "empty.jsonl:2: expected at least one message, got none; set --skip-bad-lines");
  const std::string question = R"({"question": "a", "choices": ["b", "c"], "answer": 1})"
                               "\n";
  const auto questions = folder->write(
      "bad_questions.jsonl", question + R"({"question": "a", "choices": ["b", "c"], "answer": 2})");
  expect_mistake(tessera({"evaluate", run(), questions}), "got '2'; set --skip-bad-lines to leave");
  const auto output = folder->path() / "new" / "figures.json";
  const auto end = tessera(
      {"evaluate", run(), rows, questions, "--skip-bad-lines", "--output", output.string()});
  EXPECT_EQ(end.exit_code, 0) << end.error;
  EXPECT_EQ(end.error, "");
  EXPECT_THAT(end.out, HasSubstr("2 documents"));
  EXPECT_THAT(end.out, HasSubstr("; 2 rows skipped, the first: "));
  const auto figures = nlohmann::json::parse(read_file(output));
  EXPECT_EQ(figures[rows]["skipped"], 2);
  EXPECT_EQ(figures[rows]["tokens"], 2 * 5);
  EXPECT_EQ(figures[questions]["rows"], 1);
  EXPECT_EQ(figures[questions]["skipped"], 1);
  expect_mistake(tessera({"evaluate", run(), rows, "--output", folder->path().string()}),
                 "set --output");
  expect_mistake(tessera({"generate", run(), "a", "--stop", ""}),
                 "--stop: expected a word, got none");
}

class InterruptTest : public AnswerTest, public ::testing::WithParamInterface<const char*> {};
INSTANTIATE_TEST_SUITE_P(Ranks, InterruptTest, ::testing::Values("1", "2"));

TEST_P(InterruptTest, StopsAnAnswerAndAtThePromptTheChat) {
  Terminal terminal;
  // So hot that any token is as likely as another, the answer's end among 5,000.
  const pid_t chat = start_tessera(
      {"chat", run(), "--temperature=1000", "--max-new-tokens=4000", "--seed=1", "-n", GetParam()},
      terminal.fd());
  terminal.wait_for("> ");
  terminal.type("Hi\n");
  terminal.wait_for("Hi\r\n");
  const auto begun = terminal.wait_for(" ");  // of the answer
  ::kill(chat, SIGINT);
  const auto rest = terminal.wait_for("\n> ");
  EXPECT_LT(begun.size() + rest.size(), 4000U) << "an answer of 4,000 tokens was not stopped";
  const auto file = (folder->path() / fmt::format("stopped_{}.jsonl", GetParam())).string();
  terminal.type("/save " + file + "\n");
  terminal.wait_for("saved 2 messages");
  terminal.wait_for("> ");
  ::kill(chat, SIGINT);
  int status = 0;
  ASSERT_EQ(::waitpid(chat, &status, 0), chat);
  EXPECT_EQ(WIFEXITED(status) ? WEXITSTATUS(status) : -1, 128 + SIGINT);
}

TEST_F(AnswerTest, BadInput) {
  expect_mistake(tessera({"chat", (folder->path() / "nothing").string()}), "nothing");
  expect_mistake(tessera({"generate", run(), "a", "--step=7"}), "no checkpoint of step 7");
  expect_mistake(tessera({"generate", run(), "a", "--top-p=2"}), "--top-p");
  expect_mistake(tessera({"generate", run(), "a", "-n", "3"}), "3 ranks");
  expect_mistake(tessera({"generate", run(), "a", "--dtype=int8"}), "--dtype");
  // Before a single rank starts.
  expect_mistake(tessera({"chat", run(), "-n", "1024"}), "1024 ranks");
  expect_mistake(tessera({"chat", run()}, "/fly\n"), "unknown command /fly");
  expect_mistake(tessera({"generate", run(), std::string(20'000, 'a')}), "positions");
  expect_mistake(tessera({"chat", run(), "--tokenizer=/nowhere/at/all"}, "Hi\n"), "/nowhere");
}

TEST_F(AnswerTest, NumbersThatAreNone) {
  for (const auto* option : {"--temperature=nan", "--temperature=-1", "--top-k=-1", "--top-p=0",
                             "--min-p=nan", "--repetition-penalty=0", "--max-new-tokens=0",
                             "--seed=-1", "--num-ranks=0", "--step=-1"}) {
    const auto end = tessera({"generate", run(), "a", option});
    expect_mistake(end, "expected ");
    EXPECT_LT(end.error.size(), 120U) << end.error;
  }
}

TEST_F(AnswerTest, WhatCannotBeAnsweredIsTold) {
  const auto empty = "--chat-template=" + folder->write("empty.jinja", "");
  expect_mistake(tessera({"chat", run(), empty}, "Hi\n"), "wrote nothing");
  expect_mistake(tessera({"chat", run()}, "a\xff\n"), "the message is no UTF-8");
  expect_mistake(tessera({"chat", run()}, "/save " + (folder->path() / "x").string() + "\n"),
                 "no answer yet");
  // "--stop" takes one word.
  const auto text = std::string("<|im_start|>assistant\n");
  const auto end = tessera({"generate", run(), "--stop", "lo", text, "--temperature=0"});
  EXPECT_EQ(end.out, "Hel\n") << end.error;
  // Windows' lines.
  EXPECT_EQ(tessera({"chat", run(), "--temperature=0"}, "Hi\r\n").out,
            tessera({"chat", run(), "--temperature=0"}, "Hi\n").out);
  const auto long_one = tessera({"generate", run(), "a", "--max-new-tokens=99999"});
  EXPECT_EQ(long_one.exit_code, 0);
}

}  // namespace
}  // namespace tessera
