#include <gmock/gmock.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/machine.h"
#include "tessera/cli/commands.h"
#include "tessera/config/accelerate/keys.h"
#include "tessera/launch/socket.h"

namespace tessera::cli {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

/// Whoever runs the tests may have a default configuration.
[[maybe_unused]] const int kNoDefaultFile = ::setenv("HF_HOME", "/nonexistent", 1);

struct Result {
  int exit_code = -1;
  std::string out, error;
  std::string notes;  ///< on stderr
};

Result tessera(std::vector<std::string> words) {
  CLI::App app("tessera");
  Result result;
  add_launch(app, result.exit_code);
  std::reverse(words.begin(), words.end());  // as CLI11 wants them
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  try {
    app.parse(words);
  } catch (const UserError& error) {
    result.error = error.what();
  } catch (const CLI::CallForHelp&) {
    result.out = app.help();  // of `launch`
  } catch (const CLI::ParseError& error) {
    result.error = error.what();
  }
  result.out += testing::internal::GetCapturedStdout();
  result.notes = testing::internal::GetCapturedStderr();
  return result;
}

TEST(LaunchCommand, WhatStandsBehindTheProgramBelongsToIt) {
  const auto result =
      tessera({"launch", "-n", "1", "echo", "-n", "5", "--log-dir=x", "--", "--help"});
  EXPECT_EQ(result.out, "[0]: 5 --log-dir=x -- --help\n");
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(tessera({"launch", "sh", "-c", "exit 3"}).exit_code, 3);
}

TEST(LaunchCommand, TorchrunsSpellingsWork) {
  const auto result = tessera(
      {"launch", "--nproc_per_node=2", "--nnodes=2", "--node_rank=1", "--master_addr=n0",
       "--master_port=4000", "--no-prefix", "--max-restarts", "1", "sh", "-c",
       "[ $RANK$WORLD_SIZE$MASTER_ADDR$MASTER_PORT$TORCHELASTIC_MAX_RESTARTS = ${RANK}4n040001 ]"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.error, "");
}

TEST(LaunchCommand, BadInputIsOneLine) {
  EXPECT_THAT(tessera({"launch"}).error, HasSubstr("no program"));
  EXPECT_THAT(tessera({"launch", "-n", "0", "true"}).error, HasSubstr("at least 1, got 0"));
  EXPECT_THAT(tessera({"launch", "-n", "two", "true"}).error, HasSubstr("two"));
  EXPECT_EQ(tessera({"launch", "--max-restart=2", "true"}).error,
            "launch: unknown option '--max-restart'; did you mean '--max-restarts'?");
  EXPECT_THAT(tessera({"launch", "--nnodes", "2", "true"}).error, HasSubstr("--master-addr"));
  EXPECT_THAT(tessera({"launch", "--master-port", "0", "true"}).error, HasSubstr("got 0"));
  EXPECT_THAT(tessera({"launch", "no_such_program"}).error, HasSubstr("not found"));
}

TEST(LaunchCommand, HelpHasAnExample) {
  EXPECT_THAT(tessera({"launch", "--help"}).out, HasSubstr("tessera launch -n 4 ./my_program"));
}

/// Tests run in a folder of their own, which is also where a default configuration would be.
class AccelerateLaunch : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = fs::temp_directory_path() / "tessera_cli_launch_XXXXXX";
    folder_ = ::mkdtemp(name.data());
    ::setenv("HF_HOME", folder_.c_str(), 1);
  }
  void TearDown() override {
    ::setenv("HF_HOME", "/nonexistent", 1);
    fs::remove_all(folder_);
  }

  std::string write(const std::string& name, const std::string& text) const {
    const auto path = folder_ / name;
    fs::create_directories(path.parent_path());
    std::ofstream(path) << text;
    return path;
  }

  /// What each rank has in `variables`, sorted by rank.
  static std::vector<std::string> ranks(std::vector<std::string> words,
                                        const std::string& variables) {
    words.insert(words.begin(), {"launch", "-q"});
    words.insert(words.end(), {"sh", "-c", "echo " + variables});
    const auto result = tessera(words);
    EXPECT_EQ(result.exit_code, 0) << result.error;
    std::vector<std::string> lines;
    std::istringstream stream(result.out);
    for (std::string line; std::getline(stream, line);) lines.push_back(line);
    std::ranges::sort(lines);
    return lines;
  }

  fs::path folder_;
};

constexpr const char* kTwoOnCpu =
    "distributed_type: MULTI_CPU\nnum_processes: 2\nmixed_precision: bf16\n";

TEST_F(AccelerateLaunch, SeveralProcessesOnCpusAreStarted) {
  EXPECT_THAT(
      ranks({"--config_file", write("cpu.yaml", kTwoOnCpu)},
            "$RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $MASTER_ADDR $ACCELERATE_MIXED_PRECISION "
            "$ACCELERATE_USE_CPU"),
      testing::ElementsAre("[0]: 0 2 2 127.0.0.1 bf16 True", "[1]: 1 2 2 127.0.0.1 bf16 True"));
}

TEST_F(AccelerateLaunch, TheCommandLineBeatsTheFileBeatsTheDefault) {
  const auto file = write("cpu.yaml", kTwoOnCpu);
  const std::string variables =
      "$WORLD_SIZE $ACCELERATE_MIXED_PRECISION $ACCELERATE_DYNAMO_BACKEND";
  EXPECT_EQ(ranks({"--config_file", file}, variables).front(), "[0]: 2 bf16 NO");
  EXPECT_EQ(
      ranks({"--config_file", file, "--num_processes", "1", "--mixed_precision=no"}, variables),
      std::vector<std::string>{"[0]: 1 no NO"});
  EXPECT_EQ(ranks({"--config-file", file, "--mixed-precision", "fp16"}, variables).front(),
            "[0]: 2 fp16 NO");
  EXPECT_EQ(ranks({"--config_file", file, "-n", "3"}, variables).size(), 3);
}

TEST_F(AccelerateLaunch, EveryKeyWithAnOptionHasIt) {
  const auto help = tessera({"launch", "--help_all"}).out;
  for (const auto& key : config::accelerate::keys()) {
    EXPECT_THAT(help, HasSubstr(key.option));  // "" is in every text
  }
  EXPECT_THAT(tessera({"launch", "--help"}).out, testing::Not(HasSubstr("--fp8_margin")));
}

TEST_F(AccelerateLaunch, OptionsReachTheRanks) {
  EXPECT_THAT(
      ranks({"--cpu", "--num_processes", "2", "--fp8-margin=1", "--debug",
             "--num_cpu_threads_per_process", "3", "--role", "trainer"},
            "$WORLD_SIZE $ACCELERATE_USE_CPU $ACCELERATE_DEBUG_MODE $OMP_NUM_THREADS $ROLE_NAME"),
      testing::Each(HasSubstr(": 2 True true 3 trainer")));
  const auto file = write("fsdp.yaml",
                          "distributed_type: FSDP\nnum_processes: 2\n"
                          "fsdp_config: {fsdp_version: 2, fsdp_min_num_params: 5}\n");
  EXPECT_THAT(ranks({"--config_file", file, "--cpu", "--fsdp-offload-params", "true"},
                    "$ACCELERATE_USE_FSDP $FSDP_VERSION $FSDP_MIN_NUM_PARAMS $FSDP_OFFLOAD_PARAMS "
                    "$ACCELERATE_USE_CPU"),
              testing::Each(HasSubstr(": true 2 5 true True")));
}

TEST_F(AccelerateLaunch, TheDefaultFileIsUsedAndNamed) {
  const auto before = ranks({"-n", "1"}, "${ACCELERATE_MIXED_PRECISION-unset} $WORLD_SIZE");
  EXPECT_EQ(before, std::vector<std::string>{"[0]: unset 1"});
  const auto file = write("accelerate/default_config.yaml", kTwoOnCpu);
  EXPECT_EQ(ranks({"-n", "1"}, "${ACCELERATE_MIXED_PRECISION-unset} $WORLD_SIZE"),
            std::vector<std::string>{"[0]: bf16 1"});
  EXPECT_THAT(tessera({"launch", "true"}).notes, HasSubstr("configured by " + file));
  EXPECT_EQ(tessera({"launch", "-q", "true"}).notes, "");
  EXPECT_EQ(ranks({"--cpu"}, "$ACCELERATE_MIXED_PRECISION $WORLD_SIZE"),
            std::vector<std::string>{"[0]: no 1"});
}

TEST_F(AccelerateLaunch, MachinesShareTheProcesses) {
  const auto file = write("two.yaml",
                          "distributed_type: MULTI_CPU\nnum_processes: 4\nnum_machines: 2\n"
                          "main_process_ip: 10.0.0.1\n");
  const std::string variables = "$RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $MASTER_ADDR:$MASTER_PORT";
  EXPECT_THAT(ranks({"--config_file", file, "--machine_rank", "1"}, variables),
              testing::ElementsAre("[2]: 2 4 2 10.0.0.1:29500", "[3]: 3 4 2 10.0.0.1:29500"));
  EXPECT_THAT(ranks({"--config_file", file, "--node-rank=1", "-n", "1", "--master-port=4000",
                     "--main_process_ip=n0"},
                    variables),
              testing::ElementsAre("[1]: 1 2 1 n0:4000"));
  EXPECT_THAT(tessera({"launch", "--config_file", file, "true"}).error, HasSubstr("machine_rank"));
  EXPECT_THAT(
      tessera({"launch", "--config_file", file, "--machine_rank=1", "--num_processes=3", "true"})
          .error,
      HasSubstr("--num_processes: num_processes 3 contradicts num_machines 2"));
}

TEST_F(AccelerateLaunch, ABusyPortGivesWay) {
  const auto taken = launch::bind_port(0);
  ASSERT_EQ(::listen(taken.fd.get(), 1), 0);
  const auto port = std::to_string(taken.port);
  const auto result = tessera({"launch", "--cpu", "--main_process_port", port, "sh", "-c",
                               "[ $MASTER_PORT != " + port + " ]"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.notes, HasSubstr("port " + port + " is in use"));
  EXPECT_THAT(
      tessera({"launch", "--cpu", "--main_process_port=" + port, "--num_machines=2",
               "--num_processes=2", "--machine_rank=0", "--main_process_ip=127.0.0.1", "true"})
          .error,
      HasSubstr("port " + port + " cannot be used"));
  EXPECT_EQ(
      tessera({"launch", "--cpu", "--main_process_port=0", "sh", "-c", "[ $MASTER_PORT -gt 0 ]"})
          .exit_code,
      0);
}

TEST_F(AccelerateLaunch, WhatHasNoEffectIsSaidOrRefused) {
  const auto file = write("cpu.yaml", std::string(kTwoOnCpu) + "tpu_name: pod\n");
  const std::vector<std::string> words{"launch",      "--config_file", file,
                                       "--rdzv_conf", "a=b",           "true"};
  const auto notes = tessera(words).notes;
  EXPECT_THAT(notes, HasSubstr("1 key has no effect here; tessera config show " + file));
  EXPECT_THAT(notes, HasSubstr("--rdzv_conf has no effect here: "));
  EXPECT_THAT(tessera({"launch", "--strict", "--config_file", file, "true"}).error,
              HasSubstr("cpu.yaml:4"));
  EXPECT_THAT(tessera({"launch", "--strict", "--monitor_interval", "1", "true"}).error,
              HasSubstr("--monitor_interval"));
}

TEST_F(AccelerateLaunch, PythonIsStartedForScriptsAndModules) {
  const auto python = write("python", "#!/bin/sh\necho python \"$@\"\n");
  fs::permissions(python, fs::perms::owner_all);
  ::setenv("PYTHON", python.c_str(), 1);
  const auto script = write("train.py", "#!/bin/sh\necho itself\n");
  fs::permissions(script, fs::perms::owner_all);
  EXPECT_EQ(tessera({"launch", script, "--lr", "1"}).out, "[0]: python -u " + script + " --lr 1\n");
  EXPECT_EQ(tessera({"launch", "-m", "pkg.train", "-n"}).out, "[0]: python -u -m pkg.train -n\n");
  EXPECT_EQ(tessera({"launch", "--no_python", script}).out, "[0]: itself\n");
  ::unsetenv("PYTHON");
  EXPECT_THAT(tessera({"launch", "missing.py"}).error, HasSubstr("'missing.py' not found"));
  EXPECT_THAT(tessera({"launch", "-m", "--no_python", script}).error,
              HasSubstr("--module and --no_python contradict each other"));
}

TEST_F(AccelerateLaunch, ContradictionsNameBoth) {
  const auto error = [](std::vector<std::string> words) {
    words.insert(words.begin(), "launch");
    words.push_back("true");
    return tessera(words).error;
  };
  EXPECT_EQ(error({"--use_fsdp", "--multi_gpu"}),
            "launch: --multi_gpu and --use_fsdp contradict each other; give one of them");
  EXPECT_THAT(error({"--cpu", "--use-deepspeed"}), HasSubstr("--cpu and --use_deepspeed"));
  EXPECT_THAT(error({"-n", "2", "--num_processes", "4"}), HasSubstr("-n and --num_processes"));
  EXPECT_THAT(error({"--cpu", "--nnodes=2", "--num_machines=2"}),
              HasSubstr("--nnodes and --num_machines"));
  EXPECT_THAT(error({"--use_parallelism_config"}), HasSubstr("--parallelism_config_dp_shard_size"));
}

TEST(LaunchCommand, NothingIsStartedForNumbersThatCannotBe) {
  EXPECT_EQ(tessera({"launch", "-n", "100000", "true"}).error,
            "launch: expected at most 1024 processes on a machine, got 100000; set -n or "
            "--num_processes");
  EXPECT_EQ(tessera({"launch", "--cpu=maybe", "true"}).error,
            "--cpu: expected true or false, got 'maybe'");
  EXPECT_EQ(tessera({"launch", "--use_fsdp=2", "true"}).error,
            "--use_fsdp: expected true or false, got '2'");
  EXPECT_EQ(tessera({"launch", "--config_file", "", "true"}).error,
            "--config_file: expected a file, got nothing");
  EXPECT_EQ(tessera({"launch", "--num_cpu_threads_per_process", "0", "true"}).error,
            "--num_cpu_threads_per_process: Value 0 not in range 1 to 4096");
}

TEST_F(AccelerateLaunch, BadValuesAreOneLine) {
  const auto error = [](std::vector<std::string> words) {
    words.insert(words.begin(), {"launch", "--cpu"});
    words.push_back("true");
    return tessera(words).error;
  };
  EXPECT_THAT(error({"--mixed_precision", "fp61"}), HasSubstr("did you mean 'fp16'?"));
  EXPECT_THAT(error({"--num_machines", "-4"}), HasSubstr("got '-4'"));
  EXPECT_THAT(error({"--num_processes=many"}), HasSubstr("--num_processes: "));
  EXPECT_THAT(error({"-n", "0"}), HasSubstr("got '0'"));
  EXPECT_THAT(error({"--num_cpu_threads_per_process=-1"}), HasSubstr("num_cpu_threads"));
  EXPECT_THAT(error({"--fsdp_shardin_strategy=1"}),
              HasSubstr("did you mean '--fsdp_sharding_strategy'?"));
  EXPECT_THAT(error({"--aws_access_key_id", "x"}), HasSubstr("--aws_access_key_id"));
  EXPECT_THAT(error({"--config_file", "missing.yaml"}), HasSubstr("missing.yaml"));
}

TEST_F(AccelerateLaunch, DevicesThatAreNotHereAreNamed) {
  if (!this_machine().gpus.empty()) GTEST_SKIP() << "this machine has GPUs";
  const auto file = write("gpus.yaml", "num_processes: 2\ndistributed_type: MULTI_GPU\n");
  EXPECT_THAT(tessera({"launch", "--config_file", file, "true"}).error,
              HasSubstr("gpus.yaml:2: distributed_type: MULTI_GPU needs GPUs"));
  EXPECT_THAT(tessera({"launch", "--multi_gpu", "true"}).error, HasSubstr("--cpu in its place"));
  EXPECT_THAT(tessera({"launch", "--use_fsdp", "true"}).error, HasSubstr("use_cpu: true tries it"));
  EXPECT_THAT(ranks({"--config_file", file, "--cpu"}, "$WORLD_SIZE $ACCELERATE_USE_CPU"),
              testing::Each(HasSubstr(": 2 True")));
}

}  // namespace
}  // namespace tessera::cli
