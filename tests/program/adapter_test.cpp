// An adapter as a user trains one: a run, what it answers, and what is told when its base is gone.
#include <gmock/gmock.h>

#include <filesystem>
#include <string>
#include <vector>

#include "tests/program/program.h"
#include "tests/support/temporary_folder.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

TEST(AdapterRun, AnswersBesideItsBaseAndNoOther) {
  const testing::TemporaryFolder folder;
  const auto base = folder.path() / "base", run = folder.path() / "run";
  const auto job = folder.write("job.yaml", "model: {init: pretrained}\n");
  fs::copy("tests/fixtures/llama_micro", base);
  const auto train = [&](std::vector<std::string> more) {
    std::vector<std::string> arguments{"train",
                                       job,
                                       "--model.path=" + base.string(),
                                       "--data.train=[tests/fixtures/tokens_head.bin]",
                                       "--data.seq_len=64",
                                       "--data.validation_fraction=0",
                                       "--adapter.type=lora",
                                       "--adapter.targets=all-linear",
                                       "--train.steps=3",
                                       "--train.global_batch=4",
                                       "--schedule.warmup_steps=0",
                                       "--parallel.num_ranks=2",
                                       "--train.run_dir=" + run.string()};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_tessera(arguments);
  };
  const auto end = train({"--checkpoint.every=3"});
  ASSERT_EQ(end.exit_code, 0) << end.error;
  EXPECT_THAT(end.out + end.error, HasSubstr("trained parameters "));

  const auto answer = [&] {
    return run_tessera({"generate", run.string(), "ab", "--temperature=0", "--max-new-tokens=4"});
  };
  const auto text = answer();
  EXPECT_EQ(text.exit_code, 0) << text.error;

  fs::rename(base / "model.safetensors", base / "other.safetensors");
  fs::copy("tests/fixtures/llama_micro/model_after_20_steps.safetensors",
           base / "model.safetensors");
  expect_mistake(answer(), "an adapter beside other weights than those that are in");
  const auto resumed = train({"--checkpoint.resume=auto", "--train.steps=5"});
  EXPECT_EQ(resumed.exit_code, 2);
  EXPECT_THAT(resumed.error, HasSubstr("of an adapter beside other weights than model.path's"));

  fs::remove_all(base);
  expect_mistake(answer(), "which are not there any more");
}

std::vector<std::string> steps_of(const fs::path& run, const std::string& job,
                                  std::vector<std::string> more) {
  std::vector<std::string> arguments{"train",
                                     job,
                                     "--model.path=tests/fixtures/llama_micro",
                                     "--data.train=[tests/fixtures/tokens_head.bin]",
                                     "--data.seq_len=32",
                                     "--data.validation_fraction=0",
                                     "--adapter.type=lora",
                                     "--train.steps=1",
                                     "--train.global_batch=2",
                                     "--train.run_dir=" + run.string()};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

// What counts are the stored settings, not the defaults of the keys that adapter.path replaces.
TEST(AdapterRun, GoesOnWithStoredSettings) {
  const testing::TemporaryFolder folder;
  const auto job = folder.write("job.yaml", "model: {init: pretrained}\n");
  const auto first = folder.path() / "first", second = folder.path() / "second",
             adapter = folder.path() / "adapter";
  const auto began = run_tessera(
      steps_of(first, job, {"--adapter.rank=3", "--adapter.targets=[o_proj, up_proj]"}));
  ASSERT_EQ(began.exit_code, 0) << began.error;
  const auto trained = [](const ProgramEnd& end) {
    const auto text = end.out + end.error;
    const auto begin = text.find("trained parameters ");
    return begin == std::string::npos ? text : text.substr(begin, text.find('\n', begin) - begin);
  };
  const auto exported = run_tessera({"export", first.string(), adapter.string(), "--to", "peft"});
  ASSERT_EQ(exported.exit_code, 0) << exported.error;
  const auto path = "--adapter.path=" + adapter.string();
  const auto went_on = run_tessera(steps_of(second, job, {path}));
  ASSERT_EQ(went_on.exit_code, 0) << went_on.error;
  EXPECT_EQ(trained(went_on), trained(began));

  const auto again = folder.write(
      "again.yaml",
      "model: {init: pretrained, path: tests/fixtures/llama_micro}\nadapter: {type: lora, path: " +
          adapter.string() + "}\ndata: {train: [tests/fixtures/tokens_head.bin], seq_len: 32}\n");
  const auto estimated = run_tessera({"estimate-memory", "--job", again});
  ASSERT_EQ(estimated.exit_code, 0) << estimated.error;
  EXPECT_THAT(estimated.out, HasSubstr(trained(began)));
}

TEST(AdapterRun, WhatHasNoAdapterIsNamed) {
  const testing::TemporaryFolder folder;
  const auto job = folder.write("job.yaml", "model: {init: pretrained}\n");
  const auto run = folder.path() / "run";
  expect_mistake(run_tessera(steps_of(run, job, {"--adapter.targets=[q_proj, lm_head]"})),
                 "adapter.targets: lm_head: no adapter is trained beside the head; leave it out, "
                 "name it in adapter.modules_to_save");
  expect_mistake(
      run_tessera(steps_of(run, job, {"--adapter.type=dora", "--adapter.targets=[embed_tokens]"})),
      "adapter.type: dora is for linear layers, and model.embed_tokens is a table; set lora");
}

}  // namespace
}  // namespace tessera
