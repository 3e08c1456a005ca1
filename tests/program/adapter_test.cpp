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

}  // namespace
}  // namespace tessera
