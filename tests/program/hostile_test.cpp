// What a hostile or an unlucky surrounding does to a run: each situation with its command, the one
// line that the user sees, and the exit code; as root and as a user without rights.
#include <gmock/gmock.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <thread>

#include "tessera/base/file.h"
#include "tessera/checkpoint/checksum.h"
#include "tessera/checkpoint/folder.h"
#include "tessera/data/testing.h"
#include "tests/program/program.h"
#include "tests/support/temporary_folder.h"

namespace tessera {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;
namespace fs = std::filesystem;

constexpr const char* kJob = R"(model:
  preset: micro
  vocab_size: 256
  num_layers: 1
data:
  train: [tokens.bin]
  seq_len: 16
  validation_fraction: 0
train:
  steps: 4
  global_batch: 4
  sample_tokens: 0
  run_dir: run
checkpoint:
  every: 2
logging:
  tensorboard: false
  svg: false
)";

const fs::path kCheckpoints = "run/checkpoints";

using Words = std::vector<std::string>;

struct Situation {
  std::string name;
  Words command;
  std::string line;  ///< a part of what the user sees; nothing else is an error's line
  int exit_code = 2;
  Words before = {};  ///< a command that must end well, before `prepare`
  std::function<void()> prepare = [] {};
  std::function<void()> meanwhile = {};  ///< in a thread, while the command runs
  std::function<void()> check = [] {};   ///< afterwards
  std::map<std::string, std::string> environment = {};
  bool only_without_rights = false;  ///< for root nothing is forbidden
  bool keeps_checkpoints = true;     ///< what stood there must stand there afterwards
};

// NOLINTNEXTLINE(readability-identifier-naming): GoogleTest's name
void PrintTo(const Situation& situation, std::ostream* out) { *out << situation.name; }

Words train(Words more = {}) {
  more.insert(more.begin(), {"train", "job.yaml"});
  return more;
}

/// The index of a checkpoint changed, and its marker with it: nothing is damaged.
void rewrite(const fs::path& path, const std::function<void(json&)>& change) {
  auto index = json::parse(read_file(path / checkpoint::kIndexFile));
  change(index);
  write_file(path / checkpoint::kIndexFile, index.dump());
  const auto step = checkpoint::read_marker(path).step;
  write_file(path / checkpoint::kMarkerFile,
             checkpoint::format_marker(
                 {.step = step, .index_checksum = checkpoint::checksum(index.dump())}));
}

void rewrite_newest(const std::function<void(json&)>& change) {
  rewrite(kCheckpoints / "step_00000004", change);
}

std::string nested(int depth) {
  std::string text;
  for (int i = 0; i < depth; ++i) text += "{\"a\":";
  return text + "1" + std::string(static_cast<size_t>(depth), '}');
}

void write_model(const std::string& more) {
  fs::create_directories("model");
  write_file("model/config.json",
             R"({"model_type": "llama", "vocab_size": 256, "hidden_size": 32, )"
             R"("intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, )"
             R"("num_key_value_heads": 2, "head_dim": 16, "hidden_act": "silu", )"
             R"("max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, )"
             R"("tie_word_embeddings": false, "x": )" +
                 more + "}");
}

/// Waits until the run has logged a step, then cuts its data.
void cut_data() {
  for (int i = 0; i < 2000; ++i) {
    std::error_code ignored;
    if (fs::file_size("run/metrics.jsonl", ignored) > 0 && !ignored) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  fs::resize_file("large.bin", 0);
}

/// The lock of a run, held until the process ends.
void hold(const fs::path& lock) {
  fs::create_directories(lock.parent_path());
  const int fd = ::open(lock.c_str(), O_RDWR | O_CREAT, 0666);
  if (fd < 0 || ::flock(fd, LOCK_EX) != 0) system_error(lock.string());
  const std::string holder = "host b\x1b[2J, process 7";
  if (::ftruncate(fd, 0) != 0 || ::write(fd, holder.data(), holder.size()) < 0)
    system_error("lock");
}

std::vector<Situation> data_situations() {
  return {
      {.name = "RetentionMeetsALinkToAnArchive",
       .command = train({"--train.steps=8", "--resume", "auto", "--checkpoint.keep_last=1"}),
       .line = "removed step",
       .exit_code = 0,
       .before = train(),
       .prepare =
           [] {
             fs::rename(kCheckpoints / "step_00000002", "archived");
             fs::create_directory_symlink(fs::absolute("archived"), kCheckpoints / "step_00000002");
           },
       .check =
           [] {
             EXPECT_TRUE(is_there("archived/complete.json"));
             EXPECT_FALSE(is_there(kCheckpoints / "step_00000002"));
           },
       .keeps_checkpoints = false},
      {.name = "ARunFolderThatIsNoUtf8",
       .command = train({"--train.run_dir=r\xff"}),
       .line = "--train.run_dir: expected text in UTF-8, got 'r\\xff'"},
      {.name = "ADataFileThatIsNoUtf8",
       .command = train({"--data.train=t\xff.bin"}),
       .line = "--data.train: expected text in UTF-8, got 't\\xff.bin'",
       .prepare = [] { fs::copy("tokens.bin", "t\xff.bin"); }},
      {.name = "ALinkWhereATemporaryFileMayStand",
       .command = {"tokenize", "text", "-o", "out.bin"},
       .line = "wrote",
       .exit_code = 0,
       .prepare =
           [] {
             write_file("text", "some text");
             write_file("others", "somebody's");
             for (int pid = 1; pid < 200; ++pid)
               fs::create_symlink("others", fmt::format("out.bin.{}.partial", pid));
           },
       .check = [] { EXPECT_EQ(read_file("others"), "somebody's"); }},
      {.name = "ALeftoverBesideTheResult",
       .command = {"checkpoint", "reshard", (kCheckpoints / "step_00000004").string(), "-o", "outm",
                   "--shards", "1"},
       .line = "wrote outm",
       .exit_code = 0,
       .before = train(),
       .prepare =
           [] {
             for (int pid = 1; pid < 200; ++pid) {
               const auto folder = fmt::format("outm.{}.partial", pid);
               fs::create_directories(folder);
               write_file(fs::path(folder) / "leftover", "x");
             }
           },
       .check = [] { EXPECT_FALSE(is_there("outm/leftover")); }},
      {.name = "AShardThatMayNotBeRead",
       .command = train({"--train.steps=6", "--resume", "auto"}),
       .line = "step_00000004/shard_00000.safetensors: cannot be opened: Permission denied",
       .exit_code = 1,
       .before = train(),
       .prepare =
           [] {
             fs::permissions(kCheckpoints / "step_00000004/shard_00000.safetensors",
                             fs::perms::none);
           },
       .only_without_rights = true},
      {.name = "ADriveThatIsThereTwice",
       .command = train({"--parallel.offload_optimizer=nvme", "--offload.paths=[a, ./b/../a]"}),
       .line = "offload.paths: ./b/../a: is there twice; name a folder on each drive",
       .prepare = [] { fs::create_directories("b"); }},
      {.name = "ADriveThatIsNotMounted",
       .command = train({"--parallel.offload_optimizer=nvme", "--offload.paths=[mnt/nvme0]"}),
       .line = "offload.paths: mnt/nvme0: expected a folder, or a name in one, found none",
       .check = [] { EXPECT_FALSE(is_there("mnt")); }},
      {.name = "AnIndexOfALaterVersion",
       .command = train({"--train.steps=6", "--resume", "auto"}),
       .line = "version: expected 1 or 2, got 9; read it with the Tessera that wrote it",
       .before = train(),
       .prepare = [] { rewrite_newest([](json& index) { index["version"] = 9; }); }},
      {.name = "SamplesBelowZero",
       .command = train({"--train.steps=6", "--resume", "auto"}),
       .line = "state.samples_seen: expected a whole number from 0 to 2^53, got -5",
       .before = train(),
       .prepare = [] { rewrite_newest([](json& index) { index["state"]["samples_seen"] = -5; }); }},
      {.name = "RanksThatAreText",
       .command = train({"--train.steps=6", "--resume", "auto"}),
       .line = "layout.num_ranks: expected a whole number from 1 to 2^40, got \"x\"",
       .before = train(),
       .prepare = [] { rewrite_newest([](json& index) { index["layout"]["num_ranks"] = "x"; }); }},
      {.name = "AnotherModelOfTheSameShapes",
       .command = train({"--train.steps=6", "--resume", "auto"}),
       .line = "of another model: config.json: rope_theta is 10000.0, but 777.0 where",
       .before = train(),
       .prepare =
           [] { rewrite_newest([](json& index) { index["model"]["rope_theta"] = 777.0; }); }},
      {.name = "OtherSettings",
       .command = train({"--train.steps=6", "--resume", "auto", "--optimizer.beta2=0.5"}),
       .line = "optimizer.beta2 is 0.5, but 0.95 where the checkpoint was saved",
       .exit_code = 0,
       .before = train()},
      {.name = "OtherContentOfTheData",
       .command = train({"--train.steps=6", "--resume", "auto"}),
       .line = "not the same content",
       .exit_code = 0,
       .before = train(),
       .prepare =
           [] {
             write_file("tokens.bin",
                        data::testing::bytes_of<uint16_t>(std::vector<int64_t>(200, 1)));
           }},
      {.name = "AnotherRunsCheckpointInTheFolder",
       .command = train({"--train.steps=9", "--resume", "auto"}),
       .line = "step_00000006: of another run (id ",
       .before = train(),
       .prepare =
           [] {
             const auto end = run_tessera(train({"--train.steps=6", "--train.run_dir=other"}));
             EXPECT_EQ(end.exit_code, 0) << end.error;
             fs::copy("other/checkpoints/step_00000006", kCheckpoints / "step_00000006",
                      fs::copy_options::recursive);
           }},
      {.name = "AnotherRunIsReadOnly",
       .command = train({"--train.run_dir=mine", "--train.steps=6", "--resume", kCheckpoints}),
       .line = "passed over: run/checkpoints/step_00000004: not complete",
       .exit_code = 0,
       .before = train(),
       .prepare = [] { fs::remove(kCheckpoints / "step_00000004/complete.json"); }},
      {.name = "ARenamedCheckpoint",
       .command = train({"--train.steps=9", "--resume", "auto", "--checkpoint.overwrite=true"}),
       .line = "named for step 7, but it is a checkpoint of step 4; rename it to step_00000004",
       .before = train(),
       .prepare =
           [] { fs::rename(kCheckpoints / "step_00000004", kCheckpoints / "step_00000007"); }},
      {.name = "AModelNestedSeventyDeep",
       .command = train({"--model.path=model"}),
       .line = "model/config.json: its JSON is nested too deep",
       .prepare = [] { write_model(nested(70)); }},
      {.name = "AModelNestedWithoutEnd",
       .command = train({"--model.path=model"}),
       .line = "model/config.json: its JSON is nested too deep",
       .prepare = [] { write_model(nested(300'000)); }},
      {.name = "AModelWithANumberBeyondAll",
       .command = train({"--model.path=model"}),
       .line = "model/config.json: a number in its JSON is too large",
       .prepare = [] { write_model("1e400"); }},
      {.name = "AValidationLossThatIsNoNumber",
       .command = train({"--optimizer.learning_rate=3e38", "--train.nonfinite=skip",
                         "--optimizer.max_grad_norm=0", "--train.validate_every=2",
                         "--data.validation_fraction=0.2", "--train.sample_tokens=4",
                         "--train.sample_prompt=a", "--checkpoint.keep_last=1"}),
       .line = "<the model's output is no number>",
       .exit_code = 0,
       .check = [] { EXPECT_EQ(checkpoint::step_folders(kCheckpoints).size(), 1u); }},
      {.name = "DataThatIsCutWhileItIsRead",
       .command = train({"--data.train=large.bin", "--train.steps=1000000", "--checkpoint.every=0",
                         "--data.seq_len=64"}),
       .line = "large.bin: was cut while it was read, or its disk fails; make it again",
       .prepare = [] { write_file("large.bin", std::string(8 << 20, '\0')); },
       .meanwhile = cut_data,
       .check = [] { EXPECT_EQ(checkpoint::step_folders(kCheckpoints).size(), 1u); }},
  };
}

std::vector<Situation> other_situations() {
  return {
      {.name = "TwoRunsInOneFolderWithoutSaves",
       .command = train({"--checkpoint.every=0", "--checkpoint.at_end=false"}),
       .line = "run: another run writes here (host b\\x1b[2J, process 7); wait for its end",
       .prepare = [] { hold("run/run.lock"); }},
      {.name = "ANamedPipeInPlaceOfTheMetrics",
       .command = train(),
       .line = "run/metrics.jsonl: expected a regular file, got a named pipe",
       .prepare =
           [] {
             fs::create_directories("run");
             EXPECT_EQ(::mkfifo("run/metrics.jsonl", 0666), 0);
           }},
      {.name = "ANamedPipeInPlaceOfALog",
       .command = {"launch", "--log-dir", "logs", "true"},
       .line = "logs/rank_0.log' is no regular file",
       .prepare =
           [] {
             fs::create_directories("logs");
             EXPECT_EQ(::mkfifo("logs/rank_0.log", 0666), 0);
           }},
      {.name = "AnEmptyRunFolder",
       .command = train({"--train.run_dir="}),
       .line = "train.run_dir: expected a folder, got ''"},
      {.name = "ALineFeedInTheRunFolder",
       .command = train({"--train.run_dir=a\nb", "--train.steps=6", "--resume", "auto"}),
       .line = "resumed from a\\x0ab/checkpoints/step_00000004: step 4",
       .exit_code = 0,
       .before = train({"--train.run_dir=a\nb"})},
      {.name = "ADeadlineBeyondAllTime",
       .command = train({"--parallel.timeout_seconds=1e16"}),
       .line = "--parallel.timeout_seconds: expected a number in [0.001, 10000000], got '1e16'"},
      {.name = "AHeaderOfManyTensors",
       .command = {"checkpoint", "inspect", "many.safetensors"},
       .line = "100000 (F32 100000)",
       .exit_code = 0,
       .prepare =
           [] {
             std::string header = "{";
             for (int i = 0; i < 100'000; ++i) {
               header +=
                   fmt::format(R"({}"t{}":{{"dtype":"F32","shape":[1],"data_offsets":[{},{}]}})",
                               i == 0 ? "" : ",", i, 4 * i, 4 * i + 4);
             }
             header += "}";
             write_file("many.safetensors", data::testing::bytes_of<int64_t>({std::ssize(header)}) +
                                                header + std::string(400'000, '\0'));
           }},
      {.name = "AShardsNameThatClearsTheScreen",
       .command = {"checkpoint", "inspect", "model"},
       .line = "names the shard \\x1b[2Jx.safetensors",
       .prepare =
           [] {
             write_model("1");
             write_file("model/model.safetensors.index.json",
                        R"({"metadata": {}, "weight_map": {"a": "\u001b[2Jx.safetensors"}})");
           }},
      {.name = "APasswordInTheEndpoint",
       .command = train({"--model.path=org/model"}),
       .line = "HF_ENDPOINT: expected http://host or https://host, got 'ftp://(hidden)@hub'",
       .environment = {{"HF_ENDPOINT", "ftp://me:s3cr3t@hub"}, {"HF_HUB_CACHE", "cache"}}},
      {.name = "SecretsInTheEnvironment",
       .command = {"env", "--json"},
       .line = "\"HF_X\": \"Authorization: (hidden)",
       .exit_code = 0,
       .environment = {{"HF_PASSWD", "s3cr3t"},
                       {"HF_TOKENS", "s3cr3t"},
                       {"NCCL_AUTH", "s3cr3t"},
                       {"HF_X", "Authorization: Bearer s3cr3t"},
                       {"HF_Y", R"({"token": "s3cr3t"})"},
                       {"HF_Z", "run --token s3cr3t"},
                       {"HF_BYTES", "\xff\xfe"},
                       {"HF_SCREEN", "\x1b[2J"}}},
      {.name = "ASecretThatIsTooShort",
       .command = train(),
       .line = "TESSERA_RUN_SECRET: expected a secret of at least 16 characters, got 3",
       .environment = {{"TESSERA_RUN_SECRET", "abc"}}},
  };
}

class HostileTest : public ::testing::TestWithParam<Situation> {
 protected:
  void SetUp() override {
    fs::current_path(folder_.path());
    folder_.write("job.yaml", kJob);
    folder_.write("tokens.bin", std::string(400, '\0'));
  }
  void TearDown() override { fs::current_path(home_); }

  /// All that is in the folder belongs to whoever runs the command.
  void give_away(const ProgramOptions& options) {
    if (!options.without_rights) return;
    const auto give = [](const fs::path& path) {
      EXPECT_EQ(::lchown(path.c_str(), kWithoutRights, kWithoutRights), 0) << path;
    };
    give(folder_.path());
    for (const auto& entry : fs::recursive_directory_iterator(folder_.path())) give(entry.path());
  }

  static std::set<std::string> names_of_checkpoints() {
    std::set<std::string> names;
    std::error_code ignored;
    for (const auto& entry : fs::directory_iterator(kCheckpoints, ignored))
      names.insert(entry.path().filename());
    return names;
  }

  void look(const Situation& situation, ProgramOptions options) {
    if (!situation.before.empty()) {
      give_away(options);
      const auto end = run_tessera(situation.before, options);
      ASSERT_EQ(end.exit_code, 0) << end.error;
    }
    situation.prepare();
    give_away(options);
    const auto stood = names_of_checkpoints();
    options.environment = situation.environment;
    std::jthread meanwhile;
    if (situation.meanwhile) meanwhile = std::jthread(situation.meanwhile);
    const auto end = run_tessera(situation.command, options);
    EXPECT_TRUE(end.in_time);
    EXPECT_EQ(end.exit_code, situation.exit_code) << end.out << end.error;
    EXPECT_THAT(end.out + end.error, HasSubstr(situation.line));
    EXPECT_THAT(end.out + end.error, Not(HasSubstr("\x1b")));
    EXPECT_THAT(end.out + end.error, Not(HasSubstr("s3cr3t")));
    if (situation.exit_code == 2) {
      EXPECT_EQ(std::count(end.error.begin(), end.error.end(), '\n'), 1) << end.error;
    }
    const auto stands = names_of_checkpoints();
    for (const auto& name : situation.keeps_checkpoints ? stood : std::set<std::string>()) {
      EXPECT_TRUE(stands.contains(name)) << name;
    }
    situation.check();
  }

  tessera::testing::TemporaryFolder folder_;
  fs::path home_ = fs::current_path();
};

TEST_P(HostileTest, IsOneLine) {
  if (GetParam().only_without_rights && ::getuid() == 0) GTEST_SKIP() << "root may do everything";
  look(GetParam(), {});
}

TEST_P(HostileTest, IsOneLineForAUserWithoutRights) {
  if (const auto reason = why_not_without_rights(); !reason.empty()) GTEST_SKIP() << reason;
  look(GetParam(), {.without_rights = true});
}

std::string name_of(const ::testing::TestParamInfo<Situation>& info) { return info.param.name; }

INSTANTIATE_TEST_SUITE_P(Data, HostileTest, ::testing::ValuesIn(data_situations()), name_of);
INSTANTIATE_TEST_SUITE_P(Others, HostileTest, ::testing::ValuesIn(other_situations()), name_of);

}  // namespace
}  // namespace tessera
