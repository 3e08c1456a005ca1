#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <tuple>

#include "tessera/base/error.h"
#include "tessera/base/testing.h"
#include "tessera/config/run_config.h"

namespace tessera::config {
namespace {

/// Runs in a folder of its own, so that messages show "job.yaml" alone.
class LoadTest : public ::testing::Test {
 protected:
  void SetUp() override {
    home_ = std::filesystem::current_path();
    folder_ = std::filesystem::path(::testing::TempDir()) /
              ("load_test_" + std::to_string(::getpid()) + "_" +
               ::testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::create_directories(folder_);
    std::filesystem::current_path(folder_);
  }
  void TearDown() override {
    std::filesystem::current_path(home_);
    std::filesystem::remove_all(folder_);
  }

  static LoadedConfig load(const std::string& yaml,
                           const std::vector<std::string>& overrides = {}) {
    std::ofstream("job.yaml", std::ios::binary) << yaml;
    std::vector<Override> parsed;
    for (const auto& override : overrides) parsed.push_back(parse_override(override));
    return load_run_config("job.yaml", parsed);
  }
  /// The error line, or "no error".
  static std::string error_of(const std::string& yaml,
                              const std::vector<std::string>& overrides = {}) {
    try {
      load(yaml, overrides);
    } catch (const UserError& error) {
      return error.what();
    }
    return "no error";
  }

 private:
  std::filesystem::path home_, folder_;
};

const char* const kSmallJob = "train:\n  steps: 5\n";

TEST_F(LoadTest, ReadsEveryTypeAndItsOrigin) {
  const auto [config, origins] = load(
      "# a job\n"
      "model:\n  preset: gpt2\n  tie_embeddings: off\n  num_layers: 3\n  dim: null\n"
      "data:\n  train: [a.bin, \"b, c\"]\n  validation: held_out/\n"
      "optimizer: {learning_rate: 1e-3, beta1: .5}\n"
      "train:\n  steps: 1e3\n  sample_prompt: \"a\\n: b\"\n  run_dir: 2024\n",
      {"train.global_batch=+12", "data.extensions=.h,.cpp", "parallel.num_ranks=-1",
       "data.validation=[x, y]", "data.weights=2,0.5", "parallel.stage_layers=3,0",
       "model.num_layers=null", "logging.svg=no"});
  EXPECT_EQ(config.model.preset, "gpt2");
  EXPECT_EQ(config.model.tie_embeddings, std::optional(false));
  EXPECT_EQ(config.model.num_layers, std::nullopt);
  EXPECT_EQ(config.model.dim, std::nullopt);
  EXPECT_EQ(config.data.train, (std::vector<std::string>{"a.bin", "b, c"}));
  EXPECT_EQ(config.data.validation, (std::vector<std::string>{"x", "y"}));
  EXPECT_EQ(config.data.extensions, (std::vector<std::string>{".h", ".cpp"}));
  EXPECT_EQ(config.data.weights, (std::vector<double>{2, 0.5}));
  EXPECT_EQ(config.parallel.stage_layers, (std::vector<int64_t>{3, 0}));
  EXPECT_EQ(config.optimizer.learning_rate, 1e-3);
  EXPECT_EQ(config.optimizer.beta1, 0.5);
  EXPECT_EQ(config.train.steps, 1000);
  EXPECT_EQ(config.train.sample_prompt, "a\n: b");
  EXPECT_EQ(config.train.run_dir, "2024");
  EXPECT_EQ(config.train.global_batch, 12);
  EXPECT_EQ(config.parallel.num_ranks, -1);
  EXPECT_FALSE(config.logging.svg);
  EXPECT_EQ(origins.at("model.preset"), "job.yaml:3");
  EXPECT_EQ(origins.at("optimizer.beta1"), "job.yaml:10");
  EXPECT_EQ(origins.at("train.global_batch"), "command line");
  EXPECT_EQ(origins.at("data.validation"), "command line");
  EXPECT_EQ(origins.at("data.shuffle"), "default");
}

TEST_F(LoadTest, AListGivenOnTheCommandLineMayBeEmptyOrOne) {
  EXPECT_TRUE(load("data:\n  train: [a]\n", {"data.train="}).config.data.train.empty());
  EXPECT_TRUE(load("data:\n  train: [a]\n", {"data.train=[]"}).config.data.train.empty());
  EXPECT_EQ(load(kSmallJob, {"data.train=my folder"}).config.data.train,
            std::vector<std::string>{"my folder"});
  EXPECT_EQ(load(kSmallJob, {"train.sample_prompt=a=b"}).config.train.sample_prompt, "a=b");
}

TEST_F(LoadTest, LaterOverridesWin) {
  EXPECT_EQ(load(kSmallJob, {"train.steps=6", "train.steps=7"}).config.train.steps, 7);
}

TEST_F(LoadTest, AnOverrideCarriesItsOrigin) {
  load(kSmallJob);
  const auto [config, origins] = load_run_config(
      "job.yaml", {{.key = "parallel.placement", .value = "full_shard", .origin = "fsdp.yaml:14"}});
  EXPECT_EQ(config.parallel.placement, parallel::Placement::full_shard);
  EXPECT_EQ(origins.at("parallel.placement"), "fsdp.yaml:14");
  EXPECT_EQ(tessera::testing::message_of([] {
              load_run_config("job.yaml",
                              {{.key = "train.steps", .value = "x", .origin = "fsdp.yaml:14"}});
            }),
            "fsdp.yaml:14: train.steps: expected a whole number >= 0, got 'x'");
}

TEST_F(LoadTest, AnOverrideMayBeLeftOutWhereItHasNoEffect) {
  const Override sync{.key = "parallel.sync_module_states",
                      .value = "true",
                      .origin = "fsdp.yaml:9",
                      .if_effective = true};
  load(kSmallJob);
  const auto random = load_run_config("job.yaml", {sync});
  EXPECT_FALSE(random.config.parallel.sync_module_states);
  EXPECT_EQ(random.origins.at(sync.key), "default");
  const auto pretrained =
      load_run_config("job.yaml", {sync, parse_override("model.init=pretrained")});
  EXPECT_TRUE(pretrained.config.parallel.sync_module_states);
  EXPECT_EQ(pretrained.origins.at(sync.key), "fsdp.yaml:9");
  // What the user says after it stands, and is an error of its own in `check`.
  EXPECT_TRUE(load_run_config("job.yaml", {sync, parse_override(sync.key + "=true")})
                  .config.parallel.sync_module_states);
}

TEST_F(LoadTest, FilesThatAreNoJobs) {
  std::filesystem::create_directory("folder");
  for (const auto& [file, message] : std::vector<std::pair<std::string, std::string>>{
           {"absent.yaml", "absent.yaml: cannot be opened: No such file or directory"},
           {"folder", "folder: expected a regular file, got a folder"}}) {
    try {
      load_run_config(file, {});
      ADD_FAILURE() << file;
    } catch (const UserError& error) {
      EXPECT_EQ(error.what(), message);
    }
  }
  const std::string empty =
      "job.yaml: the job file is empty; expected sections such as 'model:', 'data:' and 'train:'";
  EXPECT_EQ(error_of(""), empty);
  EXPECT_EQ(error_of("# only a comment\n"), empty);
  EXPECT_EQ(error_of("---\n"), empty);
  // The middle part is yaml-cpp's own and differs between its versions.
  for (const auto& [yaml, line, column] :
       std::vector<std::tuple<std::string, int, int>>{{"train:\n  steps: [1, 2\n", 3, 1},
                                                      {"train:\n\tsteps: 1\n", 2, 7},
                                                      {"train:\n  steps: *x\n", 2, 10}}) {
    const auto message = error_of(yaml);
    EXPECT_TRUE(message.starts_with(fmt::format("job.yaml:{}: expected YAML: ", line))) << message;
    EXPECT_TRUE(message.ends_with(fmt::format(" (column {})", column))) << message;
  }
  EXPECT_EQ(error_of("- a\n- b\n"),
            "job.yaml:1: expected sections such as 'model:' with 'key: value' lines, got a list");
  EXPECT_EQ(
      error_of("hello\n"),
      "job.yaml:1: expected sections such as 'model:' with 'key: value' lines, got a single value");
  EXPECT_EQ(error_of("train: {steps: 1}\n---\ntrain: {steps: 2}\n"),
            "job.yaml: expected one YAML document, got another after it");
}

TEST_F(LoadTest, BytesThatAreNoTextAreOneLine) {
  for (const auto& bytes : {std::string("\0\1\2\3", 4), std::string("\xff\xfe\x00\x01", 4),
                            std::string("\x7f"
                                        "ELF\2\1\1\0\0",
                                        9),
                            std::string(100000, '['), std::string("? [a]\n: b\n"),
                            std::string("%YAML 9.9\n---\na: b\n")}) {
    const auto message = error_of(bytes);
    EXPECT_TRUE(message.starts_with("job.yaml")) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  }
}

TEST_F(LoadTest, UnknownNamesSuggestTheNearest) {
  EXPECT_EQ(error_of("optimizer:\n  type: sgd\n  lr: 1\n"),
            "job.yaml:3: unknown key 'optimizer.lr'; did you mean 'optimizer.learning_rate'?");
  EXPECT_EQ(
      error_of("optimizer:\n  learning_rte: 1\n"),
      "job.yaml:2: unknown key 'optimizer.learning_rte'; did you mean 'optimizer.learning_rate'?");
  EXPECT_EQ(error_of("train:\n  lr: 1\n"),
            "job.yaml:2: unknown key 'train.lr'; did you mean 'optimizer.learning_rate'?");
  EXPECT_EQ(error_of("train:\n  seq_len: 1\n"),
            "job.yaml:2: unknown key 'train.seq_len'; did you mean 'data.seq_len'?");
  EXPECT_EQ(error_of("train:\n  batch_size: 1\n"),
            "job.yaml:2: unknown key 'train.batch_size'; did you mean 'train.global_batch'?");
  EXPECT_EQ(error_of("train:\n  qqqqqqqq: 1\n"), "job.yaml:2: unknown key 'train.qqqqqqqq'");
  EXPECT_EQ(error_of("optimizer:\n  steps: 1\n"),
            "job.yaml:2: unknown key 'optimizer.steps'; did you mean 'train.steps'?");
  EXPECT_EQ(error_of("data:\n  lerning_rate: 1\n"),
            "job.yaml:2: unknown key 'data.lerning_rate'; did you mean 'optimizer.learning_rate'?");
  EXPECT_EQ(error_of("train:\n  \"a\\nb\": 1\n"), "job.yaml:2: unknown key 'train.a\\nb'");
  EXPECT_LT(error_of("train:\n  " + std::string(500, 's') + ": 1\n").size(), 120U);
  const std::string list =
      "expected one of model, adapter, data, preference, optimizer, schedule, parallel, offload, "
      "precision, moe, memory, checkpoint, train, logging";
  EXPECT_EQ(error_of("optimiser:\n  lr: 1\n"),
            "job.yaml:1: unknown section 'optimiser'; " + list + "; did you mean 'optimizer'?");
  EXPECT_EQ(error_of("max_steps: 3\n"),
            "job.yaml:1: unknown section 'max_steps'; " + list + "; did you mean 'train.steps'?");
  EXPECT_EQ(error_of("train.steps: 3\n"),
            "job.yaml:1: expected 'steps' below 'train:' instead of the dotted key 'train.steps'");
}

TEST_F(LoadTest, DuplicatesAndSectionsThatAreNone) {
  EXPECT_EQ(error_of("train:\n  steps: 1\n  steps: 2\n"),
            "job.yaml:3: 'train.steps' is given twice; keep one of them");
  EXPECT_EQ(error_of("train:\n  steps: 1\ndata: {seed: 1}\ntrain:\n  seed: 2\n"),
            "job.yaml:4: 'train' is given twice; keep one of them");
  EXPECT_EQ(error_of("optimizer: adamw\n"),
            "job.yaml:1: optimizer: expected 'key: value' lines below it, got 'adamw'");
  EXPECT_EQ(error_of("optimizer:\ntrain: {steps: 1}\n"),
            "job.yaml:1: optimizer: expected 'key: value' lines below it, got nothing (null)");
  EXPECT_EQ(error_of("optimizer:\n  - type: sgd\n"),
            "job.yaml:1: optimizer: expected 'key: value' lines below it, got a list");
}

TEST_F(LoadTest, WrongTypes) {
  const std::string steps = "job.yaml:2: train.steps: expected a whole number >= 0, got ";
  EXPECT_EQ(error_of("train:\n  steps: many\n"), steps + "'many'");
  EXPECT_EQ(error_of("train:\n  steps: 1.5\n"), steps + "'1.5'");
  EXPECT_EQ(error_of("train:\n  steps: \"5\"\n"), steps + "the text '5'");
  EXPECT_EQ(error_of("train:\n  steps: [5]\n"), steps + "a list");
  EXPECT_EQ(error_of("train:\n  steps: {a: 5}\n"), steps + "a mapping");
  EXPECT_EQ(error_of("train:\n  steps:\n"), steps + "nothing (null)");
  EXPECT_EQ(error_of("train:\n  steps: 5 # five\n  run_dir: ~\n"),
            "job.yaml:3: train.run_dir: expected a text, got nothing (null)");
  EXPECT_EQ(error_of("train:\n  steps: 99999999999999999999\n"), steps + "'99999999999999999999'");
  EXPECT_EQ(error_of("train:\n  steps: 1e300\n"), steps + "'1e300'");
  EXPECT_EQ(error_of("train:\n  steps: 1_000\n"), steps + "'1_000'");
  EXPECT_EQ(error_of("train:\n  steps: 0x10\n"), steps + "'0x10'");
  EXPECT_EQ(error_of("train:\n  steps: 5 6\n"), steps + "'5 6'");
  EXPECT_EQ(error_of("train:\n  run_dir: [a]\n"),
            "job.yaml:2: train.run_dir: expected a text, got a list");
  EXPECT_EQ(error_of("data:\n  shuffle: maybe\n"),
            "job.yaml:2: data.shuffle: expected true or false, got 'maybe'");
  EXPECT_EQ(error_of("data:\n  shuffle: 1\n"),
            "job.yaml:2: data.shuffle: expected true or false, got '1'");
  const std::string list =
      "job.yaml:2: data.train: expected a list of texts, none of them empty, got ";
  EXPECT_EQ(error_of("data:\n  train: {a: b}\n"), list + "a mapping");
  EXPECT_EQ(error_of("data:\n  train: [a, [b]]\n"), list + "a list inside the list");
  EXPECT_EQ(error_of("data:\n  train:\n    - a\n    -\n"), list + "a list with an empty item");
  EXPECT_EQ(error_of("data:\n  train: [a, \"\"]\n"), list + "a list");
  EXPECT_EQ(error_of("data:\n  weights: [2, many]\n"),
            "job.yaml:2: data.weights: expected a list of numbers, each > 0, got a list");
  EXPECT_EQ(error_of("data:\n  weights: [2, 0]\n"),
            "job.yaml:2: data.weights: expected a list of numbers, each > 0, got a list");
  EXPECT_EQ(error_of("train:\n  steps: |\n    a\n    b\n"), steps + "the text 'a\\nb\\n'");
}

TEST_F(LoadTest, Mappings) {
  const std::string text =
      "adapter:\n  type: lora\n  rank_pattern: {q_proj: 16, 'layers.1.*': 4}\n"
      "  alpha_pattern:\n    q_proj: 2.5\n";
  const auto loaded = load(text);
  const models::Patterns<int64_t> ranks{{"q_proj", 16}, {"layers.1.*", 4}};
  EXPECT_EQ(loaded.config.adapter.rank_pattern, ranks);
  EXPECT_EQ(loaded.config.adapter.alpha_pattern, (models::Patterns<double>{{"q_proj", 2.5}}));
  EXPECT_EQ(load(to_yaml(loaded.config)).config, loaded.config);
  EXPECT_EQ(load(text, {"adapter.rank_pattern={v_proj: 2}"}).config.adapter.rank_pattern,
            (models::Patterns<int64_t>{{"v_proj", 2}}));

  const std::string ranks_of =
      "job.yaml:2: adapter.rank_pattern: expected names with whole numbers, as {a: 1}, each >= 1, "
      "got ";
  EXPECT_EQ(error_of("adapter:\n  rank_pattern: 16\n"), ranks_of + "'16'");
  EXPECT_EQ(error_of("adapter:\n  rank_pattern: {q: 0}\n"), ranks_of + "a mapping");
  EXPECT_EQ(error_of("adapter:\n  rank_pattern: {q: 1, q: 2}\n"), ranks_of + "a mapping");
  EXPECT_EQ(error_of("adapter:\n  rank_pattern: {q: [1]}\n"),
            ranks_of + "a mapping with more than names and values");
  EXPECT_EQ(error_of("adapter:\n  lora_r: 16\n"),
            "job.yaml:2: unknown key 'adapter.lora_r'; did you mean 'adapter.rank'?");
}

TEST_F(LoadTest, ImpossibleValues) {
  EXPECT_EQ(error_of("train:\n  steps: -1\n"),
            "job.yaml:2: train.steps: expected a whole number >= 0, got '-1'");
  EXPECT_EQ(error_of("data:\n  seq_len: 0\n"),
            "job.yaml:2: data.seq_len: expected a whole number >= 1, got '0'");
  const std::string rate = "job.yaml:2: optimizer.learning_rate: expected a number > 0, got ";
  for (const std::string bad : {"0", "-1", "nan", ".nan", "inf", ".inf", "1e999", "fast"}) {
    EXPECT_EQ(error_of("optimizer:\n  learning_rate: " + bad + "\n"),
              fmt::format("{}'{}'", rate, bad));
  }
  EXPECT_EQ(error_of("optimizer:\n  beta1: 1\n"),
            "job.yaml:2: optimizer.beta1: expected a number in [0, 1), got '1'");
  EXPECT_EQ(error_of("schedule:\n  min_ratio: 1.01\n"),
            "job.yaml:2: schedule.min_ratio: expected a number in [0, 1], got '1.01'");
  EXPECT_EQ(error_of("parallel:\n  num_ranks: 0\n"),
            "job.yaml:2: parallel.num_ranks: expected a whole number in [1, 1024], or -1, got '0'");
  EXPECT_EQ(error_of("optimizer:\n  type: adam\n"),
            "job.yaml:2: optimizer.type: expected one of adamw, adamw8bit, sgd, lion, muon, got "
            "'adam'; did you mean 'adamw'?");
  EXPECT_EQ(error_of("optimizer:\n  type: paged_adamw_8bit\n"),
            "job.yaml:2: optimizer.type: expected one of adamw, adamw8bit, sgd, lion, muon, got "
            "'paged_adamw_8bit'; here that is adamw8bit with parallel.offload_optimizer true");
  EXPECT_EQ(error_of("model:\n  num_layers: 0\n"),
            "job.yaml:2: model.num_layers: expected a whole number >= 1, got '0'");
  EXPECT_TRUE(error_of("model:\n  preset: tinny\n").ends_with("got 'tinny'; did you mean 'tiny'?"));
}

TEST_F(LoadTest, CommandLineErrorsNameTheOption) {
  EXPECT_EQ(error_of(kSmallJob, {"optimizer.learning_rate=abc"}),
            "--optimizer.learning_rate: expected a number > 0, got 'abc'");
  EXPECT_EQ(error_of(kSmallJob, {"train.steps="}),
            "--train.steps: expected a whole number >= 0, got ''");
  EXPECT_EQ(error_of(kSmallJob, {"train.steps=null"}),
            "--train.steps: expected a whole number >= 0, got nothing (null)");
  EXPECT_EQ(error_of(kSmallJob, {"train.steps"}),
            "--train.steps: expected a value, as in --train.steps=VALUE");
  EXPECT_EQ(error_of(kSmallJob, {"optimizer.lr=1"}),
            "unknown key '--optimizer.lr'; did you mean 'optimizer.learning_rate'?");
  EXPECT_EQ(error_of(kSmallJob, {"optim.learnin_rate=1"}),
            "unknown key '--optim.learnin_rate'; did you mean 'optimizer.learning_rate'?");
  EXPECT_EQ(error_of(kSmallJob, {"lr=1"}),
            "unknown key '--lr'; did you mean 'optimizer.learning_rate'?");
  EXPECT_EQ(error_of(kSmallJob, {"data.train=[a"}),
            "--data.train: expected a list such as a,b or [a, b], got '[a'");
  EXPECT_EQ(error_of(kSmallJob, {"data.train=a,,b"}),
            "--data.train: expected a list of texts, none of them empty, got a list");
  EXPECT_EQ(error_of(kSmallJob, {"data.train=a,"}),
            "--data.train: expected a list of texts, none of them empty, got a list");
  EXPECT_EQ(error_of(kSmallJob, {"logging.report_to=csv,mlfow"}),
            "--logging.report_to: expected a list of csv, mlflow, got 'mlfow' in it; did you mean "
            "'mlflow'?");
}

TEST_F(LoadTest, ReshardingIsAFlagOrANumberOfRanks) {
  const auto read = [&](const std::string& value) {
    return load_run_config("", {parse_override("parallel.reshard_after_forward=" + value)})
        .config.parallel.reshard_after_forward;
  };
  EXPECT_EQ(read("true"), parallel::ReshardAfterForward(true));
  EXPECT_EQ(read("false"), parallel::ReshardAfterForward(false));
  EXPECT_EQ(read("4"), parallel::ReshardAfterForward(4));
  for (const auto* wrong : {"0", "-2", "2x", "", "null"}) {
    EXPECT_THAT(error_of(kSmallJob, {std::string("parallel.reshard_after_forward=") + wrong}),
                ::testing::StartsWith("--parallel.reshard_after_forward: expected true, false or a "
                                      "whole number of 1 or more, got "))
        << wrong;
  }
}

}  // namespace
}  // namespace tessera::config
