// What a user gets wrong is one line and exit code 2, before any training, and leaves nothing
// behind.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <set>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/data/testing.h"
#include "tessera/launch/socket.h"
#include "tests/program/program.h"
#include "tests/support/temporary_folder.h"

namespace tessera {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
namespace fs = std::filesystem;

constexpr const char* kGoodJob = R"(model:
  preset: micro
  vocab_size: 256
data:
  train: [tokens.bin]
  seq_len: 16
  validation_fraction: 0
parallel:
  num_ranks: 2
train:
  steps: 3
  global_batch: 4
  sample_tokens: 0
  run_dir: run
)";

std::string bytes_of(const std::vector<uint16_t>& tokens) {
  return {reinterpret_cast<const char*>(tokens.data()), tokens.size() * sizeof(uint16_t)};
}

std::string llmc_header(int32_t num_tokens) {
  std::vector<int32_t> header(256);
  header[0] = 20240520;
  header[1] = 1;
  header[2] = num_tokens;
  return {reinterpret_cast<const char*>(header.data()), header.size() * sizeof(int32_t)};
}

/// Tests run in a folder of their own with a good job and its data, of which each spoils one thing.
class BadInputTest : public ::testing::Test {
 protected:
  void SetUp() override {
    fs::current_path(folder_.path());
    folder_.write("job.yaml", kGoodJob);
    folder_.write("tokens.bin", bytes_of(std::vector<uint16_t>(200, 7)));
  }
  void TearDown() override { fs::current_path(before_); }

  /// The good job with one line changed.
  void change(const std::string& from, const std::string& to) {
    std::string job = kGoodJob;
    const auto at = job.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    folder_.write("job.yaml", job.replace(at, from.size(), to));
  }

  static std::set<std::string> files() {
    std::set<std::string> names;
    for (const auto& entry : fs::recursive_directory_iterator(".")) names.insert(entry.path());
    return names;
  }

  /// `line`: a regular expression (POSIX, extended) for the whole of what stands behind
  /// "tessera: ".
  static void expect_refusal(const std::vector<std::string>& arguments, const std::string& line,
                             const std::map<std::string, std::string>& environment = {}) {
    const auto before = files();
    const auto end = run_tessera(arguments, {.environment = environment});
    EXPECT_TRUE(end.in_time);
    EXPECT_EQ(end.exit_code, kUserErrorExit);
    EXPECT_THAT(end.error, MatchesRegex("tessera: " + line + "\n"));
    EXPECT_EQ(std::count(end.error.begin(), end.error.end(), '\n'), 1) << end.error;
    EXPECT_EQ(end.out, "");
    EXPECT_EQ(files(), before);
  }

  static std::map<std::string, std::string> as_rank(int rank, int world_size, int port) {
    return {{"RANK", std::to_string(rank)},
            {"WORLD_SIZE", std::to_string(world_size)},
            {"MASTER_ADDR", "127.0.0.1"},
            {"MASTER_PORT", std::to_string(port)}};
  }

  tessera::testing::TemporaryFolder folder_;
  fs::path before_ = fs::current_path();
};

/// A port on which somebody listens who has nothing to do with the run.
struct Stranger {
  Stranger() : socket(launch::bind_port(0, /*any_address=*/false)) {
    if (::listen(socket.fd.get(), 8) != 0) system_error("listen");
  }
  launch::BoundSocket socket;
};

TEST_F(BadInputTest, TheGoodJobRuns) {
  const auto end = run_tessera({"train", "job.yaml"});
  EXPECT_EQ(end.exit_code, 0);
  EXPECT_EQ(end.error, "");
  EXPECT_THAT(end.out, HasSubstr("3 steps on 2 ranks"));
  EXPECT_THAT(files(), Contains("./run/metrics.jsonl"));
  for (const auto& name : files()) EXPECT_FALSE(name.ends_with(".partial")) << name;
}

TEST_F(BadInputTest, JobFileMissing) {
  expect_refusal({"train", "absent.yaml"},
                 "absent\\.yaml: cannot be opened: No such file or directory");
}

TEST_F(BadInputTest, JobFileEmpty) {
  folder_.write("job.yaml", "");
  expect_refusal({"train", "job.yaml"},
                 "job\\.yaml: the job file is empty; expected sections such as 'model:', 'data:' "
                 "and 'train:'");
}

TEST_F(BadInputTest, JobFileNotYaml) {
  change("train: [tokens.bin]", "train: [tokens.bin");
  expect_refusal({"train", "job.yaml"},
                 "job\\.yaml:[5-7]: expected YAML: [a-z ,']+ \\(column [0-9]+\\)");
  folder_.write("job.yaml", "just words\n");
  expect_refusal({"train", "job.yaml"},
                 "job\\.yaml:1: expected sections such as 'model:' with 'key: value' lines, got a "
                 "single value");
}

TEST_F(BadInputTest, JobFileIsNoFile) {
  fs::create_directory("folder");
  expect_refusal({"train", "folder"}, "folder: expected a regular file, got a folder");
  ASSERT_EQ(::mkfifo("pipe", 0600), 0);
  expect_refusal({"train", "pipe"}, "pipe: expected a regular file, got a named pipe");
}

TEST_F(BadInputTest, UnknownKey) {
  change("steps: 3", "setps: 3");
  expect_refusal({"train", "job.yaml"},
                 "job\\.yaml:11: unknown key 'train\\.setps'; did you mean 'train\\.steps'\\?");
  SetUp();
  expect_refusal({"train", "job.yaml", "--train.setps=3"},
                 "unknown key '--train\\.setps'; did you mean 'train\\.steps'\\?");
}

TEST_F(BadInputTest, WrongType) {
  change("steps: 3", "steps: three");
  expect_refusal({"train", "job.yaml"},
                 "job\\.yaml:11: train\\.steps: expected a whole number.*, got 'three'");
  SetUp();
  expect_refusal({"train", "job.yaml", "--data.shuffle=perhaps"},
                 "--data\\.shuffle: expected .*true.*, got 'perhaps'");
}

TEST_F(BadInputTest, ImpossibleValue) {
  change("steps: 3", "steps: -3");
  expect_refusal({"train", "job.yaml"},
                 "job\\.yaml:11: train\\.steps: expected a whole number.*, got '?-3'?");
  SetUp();
  expect_refusal({"train", "job.yaml", "--model.num_heads=3"},
                 "--model\\.num_heads: 3 heads do not divide a width of [0-9]+; set a model\\.dim "
                 "that is a multiple of model\\.num_heads");
}

TEST_F(BadInputTest, NumbersBeyondFloat32) {
  expect_refusal({"train", "job.yaml", "--optimizer.learning_rate=1e39"},
                 "--optimizer\\.learning_rate: expected a number that float32 has, at most "
                 "3\\.4e\\+38, got '1e39'");
  SetUp();
  expect_refusal(
      {"train", "job.yaml", "--data.weights=[1, 2e39]"},
      "--data\\.weights: expected a number that float32 has, at most 3\\.4e\\+38, got '2e39'");
  SetUp();
  expect_refusal({"train", "job.yaml", "--adapter.alpha_pattern={q_proj: 3e39}"},
                 "--adapter\\.alpha_pattern: expected a number that float32 has.*got '3e39'");
}

TEST_F(BadInputTest, ANameThatIsTooLong) {
  const std::string name(300, 'x');
  for (const std::string key : {"data.train", "model.path", "train.run_dir", "checkpoint.dir"}) {
    SCOPED_TRACE(key);
    const auto end = run_tessera({"train", "job.yaml", fmt::format("--{}={}", key, name)});
    EXPECT_EQ(end.exit_code, kUserErrorExit);
    EXPECT_THAT(end.error, HasSubstr(name));
    EXPECT_EQ(std::count(end.error.begin(), end.error.end(), '\n'), 1) << end.error;
  }
}

// It trained, and a script must not take it for a mistake in the job.
TEST_F(BadInputTest, ALossThatIsNoNumberIsAFailure) {
  const auto end = run_tessera({"train", "job.yaml", "--optimizer.learning_rate=1e30"});
  EXPECT_EQ(end.exit_code, kFailureExit);
  EXPECT_THAT(end.error, HasSubstr("NaN or infinity, first in unit"));
  EXPECT_THAT(end.error,
              HasSubstr("lower optimizer.learning_rate, or set train.nonfinite to skip\n"));
}

TEST_F(BadInputTest, ExpertsWithoutRoomOrReason) {
  const auto mixture = (before_ / "tests/fixtures/mixtral_micro").string();
  change("  preset: micro\n  vocab_size: 256", "  path: " + mixture);
  expect_refusal({"train", "job.yaml", "--moe.capacity_factor=0"},
                 "--moe\\.capacity_factor: expected a number > 0, got '0'");
  expect_refusal({"train", "job.yaml", "--moe.capacity_factor=some"},
                 "--moe\\.capacity_factor: expected a number > 0, got 'some'");
  expect_refusal({"train", "job.yaml", "--moe.drop_policy=position"},
                 "--moe\\.drop_policy: has no effect here: it needs moe\\.capacity_factor or "
                 "moe\\.eval_capacity_factor; remove one of them");
  expect_refusal(
      {"train", "job.yaml", "--moe.capacity_factor=1", "--moe.drop_policy=last"},
      "--moe\\.drop_policy: expected one of probs, position, choice, random, got 'last'");
  expect_refusal({"train", "job.yaml", "--moe.input_jitter=1"},
                 "--moe\\.input_jitter: expected a number in \\[0, 1\\), got '1'");
  expect_refusal(
      {"train", "job.yaml", "--moe.capacity_factor=2"},
      "moe\\.capacity_factor: has no effect here: 2 of a token's 2 choices among 4 "
      "experts is room for all 16 tokens of a row; set it to at most 1\\.875, or remove it");
  expect_refusal({"train", "job.yaml", "--moe.capacity_factor=1", "--moe.force_balance=true"},
                 "--moe\\.capacity_factor: has no effect here: it needs moe\\.force_balance false; "
                 "remove one of them");
}

TEST_F(BadInputTest, MoreRanksThanSamples) {
  folder_.write("tokens.bin", bytes_of(std::vector<uint16_t>(17, 7)));
  expect_refusal({"train", "job.yaml"},
                 "data\\.train: more ranks than samples: expected at least 2 samples of 16 tokens, "
                 "got 1; use fewer ranks, more data or a smaller data\\.seq_len");
}

TEST_F(BadInputTest, BatchThatRanksCannotShare) {
  change("global_batch: 4", "global_batch: 5");
  expect_refusal({"train", "job.yaml"},
                 "job\\.yaml:12: train\\.global_batch: 5 sequences cannot be divided over 2 ranks; "
                 "set a multiple of 2");
}

TEST_F(BadInputTest, TokenBeyondTheVocabulary) {
  std::vector<uint16_t> tokens(200, 7);
  tokens[50] = 256;
  folder_.write("tokens.bin", bytes_of(tokens));
  expect_refusal({"train", "job.yaml"},
                 "tokens\\.bin: token 256 at byte offset 100 is beyond the vocabulary: expected 0 "
                 "to 255; set model\\.vocab_size");
}

// As cron and daemons start programs.
TEST_F(BadInputTest, ClosedStandardStreamsHarmNobody) {
  for (const char* closed : {"<&-", ">&-", "2>&-", "<&- >&- 2>&-"}) {
    const auto end = run_tessera({"train", "job.yaml"}, {.redirection = closed});
    EXPECT_EQ(end.exit_code, 0) << closed << ": " << end.error;
    EXPECT_TRUE(fs::exists("run/metrics.jsonl")) << closed;
    fs::remove_all("run");
  }
}

TEST_F(BadInputTest, DataMissingEmptyOrAPipe) {
  expect_refusal({"train", "job.yaml", "--data.train=absent.bin"},
                 "absent\\.bin: no such file or folder; set data\\.train");
  expect_refusal({"train", "job.yaml", "--data.validation=absent.bin"},
                 "absent\\.bin: no such file or folder; set data\\.validation");
  expect_refusal({"train", "job.yaml", "--resume=auto", "--checkpoint.resume=x"},
                 "train: --resume and --checkpoint\\.resume are one; give one");
  folder_.write("tokens.bin", "");
  expect_refusal({"train", "job.yaml"},
                 "tokens\\.bin: expected tokens, got an empty file; make it again");
  ASSERT_EQ(::mkfifo("pipe.bin", 0600), 0);
  expect_refusal({"train", "job.yaml", "--data.train=pipe.bin"},
                 "pipe\\.bin: expected a regular file, got a named pipe");
}

TEST_F(BadInputTest, DataTruncated) {
  const auto tokens = bytes_of(std::vector<uint16_t>(200, 7));
  folder_.write("tokens.bin", llmc_header(300) + tokens);
  expect_refusal({"train", "job.yaml"},
                 "tokens\\.bin: truncated: its llm\\.c header promises 300 tokens \\(600 bytes\\), "
                 "got 400 bytes of tokens; make it again");
  folder_.write("tokens.bin", llmc_header(300).substr(0, 1000));
  expect_refusal({"train", "job.yaml"},
                 "tokens\\.bin: truncated: expected an llm\\.c header of 1024 bytes, got a file of "
                 "1000; make it again");
  folder_.write("tokens.bin", tokens.substr(1));
  expect_refusal({"train", "job.yaml"},
                 "tokens\\.bin: truncated, or not uint16 tokens: expected a multiple of 2 bytes, "
                 "got 399; make it again, or set data\\.token_dtype or data\\.format");
}

TEST_F(BadInputTest, TokensReadAsText) {
  const std::string line =
      "tokens\\.bin: expected text, got zero bytes, as files of tokens have them; set "
      "data\\.format "
      "to auto, or to what it is";
  expect_refusal({"train", "job.yaml", "--data.format=text"}, line);
  fs::create_directory("folder");
  fs::rename("tokens.bin", "folder/tokens.bin");
  expect_refusal({"train", "job.yaml", "--data.format=text", "--data.train=folder"},
                 "folder/" + line);
}

TEST_F(BadInputTest, OccupiedPort) {
  const Stranger stranger;
  const auto port = std::to_string(stranger.socket.port);
  expect_refusal({"train", "job.yaml"},
                 "port " + port + " on 127\\.0\\.0\\.1 is in use; set --master-port or MASTER_PORT",
                 as_rank(0, 2, stranger.socket.port));
  expect_refusal({"launch", "-n", "2", "--master-port", port, "true"},
                 "launch: master port " + port +
                     " cannot be used: Address already in use; choose another one or, on one "
                     "machine, none");
}

TEST_F(BadInputTest, WorldSizeThatDoesNotMatchTheMesh) {
  change("num_ranks: 2", "num_ranks: 2\n  dp_replicate: 4");
  expect_refusal({"train", "job.yaml"},
                 "job\\.yaml:10: parallel\\.dp_replicate: the mesh has 4 ranks but the run has 2; "
                 "set 2 or -1");
  change("num_ranks: 2", "num_ranks: -1\n  dp_replicate: 4");
  expect_refusal({"train", "job.yaml"},
                 "job\\.yaml:10: parallel\\.dp_replicate: the mesh has 4 ranks but the run has 1; "
                 "set 1 or -1",
                 as_rank(0, 1, 4000));
}

TEST_F(BadInputTest, AnotherNumberOfRanksThanALauncherStarted) {
  const std::string what =
      "parallel\\.num_ranks 2, but this is one of 4 ranks \\(torchrun's "
      "variables\\); set it to 4, or to -1 for as many as there are";
  expect_refusal({"train", "job.yaml"}, "job\\.yaml:9: " + what, as_rank(0, 4, 4000));
  expect_refusal({"train", "job.yaml", "--parallel.num_ranks=2"}, "command line: " + what,
                 as_rank(0, 4, 4000));
}

TEST_F(BadInputTest, MatricesThatCannotBeDivided) {
  expect_refusal({"train", "job.yaml", "--parallel.tp=3"},
                 "--parallel\\.tp: the mesh has 3 ranks but the run has 2; set 2 or -1");
  expect_refusal(
      {"train", "job.yaml", "--parallel.num_ranks=8", "--parallel.tp=8"},
      "--parallel\\.tp: 4 heads \\(2 of keys\\) cannot be divided over 8 ranks; set one of "
      "1, 2, 4");
  expect_refusal({"train", "job.yaml", "--parallel.tp=2", "--data.seq_len=15"},
                 "--data\\.seq_len: expected a multiple of parallel\\.tp 2, got 15; set 14, or "
                 "parallel\\.sequence_parallel to false");
}

/// What cannot be is told before a rank starts.
TEST_F(BadInputTest, PipelinesThatCannotBe) {
  const std::vector<std::string> job{"train", "job.yaml", "--parallel.pp=2"};
  const auto with = [&](std::vector<std::string> options) {
    options.insert(options.begin(), job.begin(), job.end());
    return options;
  };
  expect_refusal(with({"--parallel.num_ranks=6", "--parallel.tp=2"}),
                 "--parallel\\.tp: the mesh has 4 ranks but the run has 6; set 3 or -1");
  expect_refusal(
      with({"--parallel.pipeline_schedule=LoopedBFS", "--parallel.stages_per_rank=3"}),
      "parallel\\.pp: 2 layers cannot be divided over 6 stages \\(2 ranks, LoopedBFS\\); "
      "set fewer");
  expect_refusal(
      with({"--parallel.pipeline_schedule=DualPipeV", "--train.micro_batch=2"}),
      "parallel\\.pipeline_schedule: DualPipeV: needs two micro-batches for each rank, .*");
  expect_refusal(
      with({"--parallel.pipeline_schedule=2F2B"}),
      "parallel\\.pipeline_schedule: expected a schedule \\(GPipe, 1F1B, .*, DualPipeV\\) or "
      "a \\.csv file with one, got '2F2B'; did you mean .*");
  folder_.write("swapped.csv", "0F0,0B0,0F1,0B1\n1F1,1F0,1B0,1B1\n");
  expect_refusal(with({"--parallel.pipeline_schedule=swapped.csv", "--train.micro_batch=2"}),
                 "parallel\\.pipeline_schedule: swapped\\.csv: deadlock: .*");
  expect_refusal(
      with({"--parallel.stage_layers=1,2"}),
      "parallel\\.stage_layers: expected 2 numbers, one a stage, whose sum is the model's 2 "
      "layers, got \\[1, 2\\]");
  expect_refusal({"train", "job.yaml", "--parallel.stage_balance=layers"},
                 "--parallel\\.stage_balance: has no effect here: it needs parallel\\.pp above 1; "
                 "remove one of them");
}

/// The text so far may have any length, also one that the ranks of tp do not divide.
TEST_F(BadInputTest, ADividedModelSpeaks) {
  const auto end = run_tessera({"train", "job.yaml", "--parallel.tp=2", "--train.sample_tokens=3",
                                "--train.sample_prompt=a"});
  EXPECT_EQ(end.exit_code, 0);
  EXPECT_EQ(end.error, "");
  EXPECT_THAT(end.out, HasSubstr("\ngenerating 3 tokens of text (train.sample_tokens)\n"));
  EXPECT_THAT(end.out, HasSubstr("3 steps on 2 ranks"));
}

/// With keys and values kept or computed anew, and beyond the model's positions.
TEST_F(BadInputTest, ASampleIsTheSameInEveryLayout) {
  const auto sample = [](std::vector<std::string> layout) {
    layout.insert(layout.begin(), {"train", "job.yaml", "--train.sample_tokens=150"});
    EXPECT_EQ(run_tessera(layout).error, "");
    const auto text = read_file("run/summary.json");
    fs::remove_all("run");
    const auto begin = text.find("\"sample\"");
    EXPECT_NE(begin, std::string::npos);
    return text.substr(begin, text.find('\n', begin) - begin);
  };
  const auto alone = sample({"--parallel.num_ranks=1"});
  EXPECT_GT(alone.size(), 150u);
  EXPECT_EQ(sample({"--parallel.tp=2"}), alone);
  EXPECT_EQ(sample({"--parallel.tp=2", "--parallel.sequence_parallel=false"}), alone);
  EXPECT_EQ(sample({"--parallel.pp=2"}), alone);
  EXPECT_EQ(sample({"--parallel.placement=full_shard"}), alone);
}

TEST_F(BadInputTest, RanksThatDoNotExist) {
  expect_refusal({"train", "job.yaml"},
                 "torchrun: rank 2 does not exist among 2 ranks; see the variables for rank and "
                 "world size",
                 as_rank(2, 2, 4000));
  expect_refusal({"train", "job.yaml"}, "RANK is not set though WORLD_SIZE is; set both or neither",
                 {{"WORLD_SIZE", "2"}});
}

TEST_F(BadInputTest, RunFolderThatCannotBeWritten) {
  const std::string rest =
      "train\\.run_dir: expected a folder that can be written, got '%' \\(@\\); set another one";
  const auto line = [&](const std::string& folder, const std::string& reason) {
    auto text = rest;
    text.replace(text.find('%'), 1, folder);
    return text.replace(text.find('@'), 1, reason);
  };
  expect_refusal({"train", "job.yaml", "--train.run_dir=tokens.bin"},
                 line("tokens\\.bin", "Not a directory"));
  expect_refusal({"train", "job.yaml", "--train.run_dir=tokens.bin/run"},
                 line("tokens\\.bin/run", "Not a directory"));
  expect_refusal({"train", "job.yaml", "--train.run_dir=/proc/run"}, line("/proc/run", "[^)]+"));
  if (::geteuid() == 0) return;  // whom no permission stops
  fs::create_directory("locked");
  fs::permissions("locked", fs::perms::owner_read | fs::perms::owner_exec);
  expect_refusal({"train", "job.yaml", "--train.run_dir=locked/run"},
                 line("locked/run", "Permission denied"));
}

TEST_F(BadInputTest, UnknownOptionsAndCommands) {
  expect_refusal(
      {"train", "job.yaml", "--print-confg"},
      "unknown option '--print-confg'; expected --section\\.key=value, see tessera train --help");
  expect_refusal({"train"}, "JOB is required; see tessera --help");
  expect_refusal({"--frobnicate"}, "unknown command or option '--frobnicate'; see tessera --help");
  expect_refusal({"trian", "job.yaml"},
                 "unknown command or option 'trian'; did you mean 'train'\\?; see tessera --help");
  expect_refusal({}, "A subcommand is required; see tessera --help");
  expect_refusal({"tokenize", "absent.txt", "-o", "out.bin"},
                 "absent\\.txt: no such file or folder.*");
}

/// A store that nobody serves is not the user's mistake: exit code 1, but one line as well, and no
/// words of LibTorch's own.
TEST_F(BadInputTest, AStoreThatNobodyServes) {
  const Stranger silent;
  int free_port = launch::bind_port(0, /*any_address=*/false).port;
  for (const int port : {free_port, silent.socket.port}) {
    const auto end = run_tessera({"train", "job.yaml", "--parallel.timeout_seconds=1"},
                                 {.environment = as_rank(1, 2, port)});
    EXPECT_TRUE(end.in_time);
    EXPECT_EQ(end.exit_code, kFailureExit);
    EXPECT_THAT(end.error, MatchesRegex("tessera: rank 1: no store at 127\\.0\\.0\\.1:" +
                                        std::to_string(port) + " within 1 s: [^\n]+\n"));
  }
}

}  // namespace
}  // namespace tessera
