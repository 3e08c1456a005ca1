// The commands around a run, as a user runs them: config's questions, env, completion, help.
#include <gmock/gmock.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/data/testing.h"
#include "tessera/launch/process.h"
#include "tests/program/program.h"
#include "tests/program/terminal.h"
#include "tests/support/temporary_folder.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;
using Arguments = std::vector<std::string>;

const std::string kEnters(40, '\n');  ///< the default answer to every question

class SurfaceTest : public ::testing::Test {
 protected:
  void SetUp() override { fs::current_path(folder_.path()); }
  void TearDown() override { fs::current_path(before_); }

  ProgramEnd run(const Arguments& arguments, const std::string& input = "",
                 std::map<std::string, std::string> environment = {}) const {
    environment.emplace("HF_HOME", (folder_.path() / "hf").string());
    return run_tessera(arguments, {.environment = std::move(environment), .input = input});
  }

  std::string output(const Arguments& arguments, const std::string& input = "") const {
    const auto end = run(arguments, input);
    EXPECT_EQ(end.exit_code, 0) << end.error;
    EXPECT_EQ(end.error, "");
    return end.out;
  }

  /// The one line that it says, without "tessera: ".
  std::string refusal(const Arguments& arguments, const std::string& input = "") const {
    const auto end = run(arguments, input);
    EXPECT_EQ(end.exit_code, kUserErrorExit);
    EXPECT_THAT(end.error, MatchesRegex("tessera: [^\n]+\n"));
    return end.error.size() < 10 ? end.error : end.error.substr(9, end.error.size() - 10);
  }

  tessera::testing::TemporaryFolder folder_;
  fs::path before_ = fs::current_path();
};

TEST_F(SurfaceTest, QuestionsAreAnsweredByLines) {
  EXPECT_THAT(output({"config"}, kEnters), HasSubstr("tessera launch PROGRAM\n"));
  const auto file = read_file("hf/accelerate/default_config.yaml");
  EXPECT_THAT(file, HasSubstr("compute_environment: LOCAL_MACHINE\n"));
  EXPECT_THAT(file, HasSubstr("distributed_type: "));
  EXPECT_THAT(output({"config", "update"}), HasSubstr("has today's keys"));
  EXPECT_THAT(output({"config", "--config_file", "sub/mine.yaml"}, kEnters),
              HasSubstr("tessera launch --config_file sub/mine.yaml PROGRAM\n"));
  EXPECT_EQ(read_file("sub/mine.yaml"), file);
}

TEST_F(SurfaceTest, AnswersThatEndOrAreWrongWriteNothing) {
  EXPECT_THAT(refusal({"config", "--config_file", "mine.yaml"}),
              MatchesRegex("the input ended at the question '[^\n]+'; nothing was written"));
  EXPECT_THAT(refusal({"config", "--config_file", "mine.yaml"}, "none of them\n" + kEnters),
              MatchesRegex("question '[^\n]+': expected a [^\n]+, got 'none of them'; nothing was "
                           "written"));
  EXPECT_FALSE(fs::exists("mine.yaml"));
}

TEST_F(SurfaceTest, AFileIsReplacedOnlyIfThatIsWanted) {
  folder_.write("mine.yaml", "precious\n");
  const Arguments config{"config", "--config_file", "mine.yaml"};
  EXPECT_THAT(output(config, "no\n"), HasSubstr("Kept mine.yaml; nothing was written.\n"));
  EXPECT_THAT(refusal(config), HasSubstr("mine.yaml exists. Is it replaced?"));
  EXPECT_EQ(refusal({"config", "default", "--config_file", "mine.yaml"}),
            "mine.yaml: exists; replace it with --yes, or set --config_file");
  EXPECT_EQ(read_file("mine.yaml"), "precious\n");
  output(config, "yes\n" + kEnters);
  EXPECT_THAT(read_file("mine.yaml"), HasSubstr("distributed_type"));
  folder_.write("mine.yaml", "precious\n");
  output({"config", "--config_file", "mine.yaml", "--yes"}, kEnters);
  EXPECT_THAT(read_file("mine.yaml"), HasSubstr("distributed_type"));
}

TEST_F(SurfaceTest, FilesThatCannotBeWritten) {
  EXPECT_EQ(refusal({"config", "--config_file", "mine.json"}),
            "mine.json: what is written is YAML; choose a name that ends in .yaml");
  EXPECT_EQ(refusal({"config", "default", "--config_file", "."}),
            ".: expected a file, got a folder; set --config_file");
  folder_.write("file", "");
  EXPECT_EQ(refusal({"config", "default", "--config_file", "file/mine.yaml"}),
            "file/mine.yaml: cannot be written: Not a directory; set --config_file");
}

TEST_F(SurfaceTest, CommandsThatWriteMakeFoldersAndRefuseWhatCannotBeWritten) {
  folder_.write("one.yaml",
                "distributed_type: FSDP\nnum_processes: 2\nfsdp_config: {fsdp_version: 1}\n");
  output({"config", "migrate", "one.yaml", "-o", "new/job.yaml"});
  output({"to-fsdp2", "--config_file", "one.yaml", "--output_file", "new/er/two.yaml"});
  EXPECT_THAT(read_file("new/er/two.yaml"), HasSubstr("fsdp_version: 2\n"));
  EXPECT_EQ(refusal({"config", "migrate", "one.yaml", "-o", "one.yaml/x"}),
            "one.yaml/x: cannot be written: Not a directory; name another file");
  EXPECT_EQ(refusal({"to-fsdp2", "--config_file", "one.yaml", "--output_file", ".", "--overwrite"}),
            ".: expected a file, got a folder; choose another --output_file");
  EXPECT_EQ(refusal({"merge-weights", "one.yaml", "one.yaml/x"}),
            "one.yaml/x/model.safetensors: cannot be written: Not a directory; choose another OUT");
}

TEST_F(SurfaceTest, TestRefusesHardwareThatIsNotHere) {
  folder_.write("gaudi.yaml", "distributed_type: MULTI_HPU\nnum_processes: 2\n");
  EXPECT_EQ(refusal({"test", "--config_file", "gaudi.yaml"}),
            "gaudi.yaml:1: distributed_type MULTI_HPU is refused: needs Gaudi HPUs; tessera drives "
            "NVIDIA GPUs and CPUs (--cpu tries it on a CPU)");
  folder_.write("hf/accelerate/default_config.yaml",
                "distributed_type: MULTI_HPU\nnum_processes: 2\n");
  EXPECT_THAT(refusal({"test", "-n", "2"}), HasSubstr("default_config.yaml:1: distributed_type"));
}

TEST_F(SurfaceTest, TheBasicFile) {
  output({"config", "default", "--mixed_precision", "bf16"});
  const auto file = read_file("hf/accelerate/default_config.yaml");
  EXPECT_THAT(file, HasSubstr("mixed_precision: bf16\n"));
  EXPECT_EQ(refusal({"config", "default", "--mixed_precision", "bf61", "--yes"}),
            "config: --mixed_precision: expected no, fp16 or bf16, got 'bf61'; did you mean "
            "'bf16'?");
  EXPECT_EQ(read_file("hf/accelerate/default_config.yaml"), file);
}

TEST_F(SurfaceTest, AnOldFileGetsTodaysKeysAndKeepsItsValues) {
  folder_.write("old.yaml", "distributed_type: MULTI_CPU\nfp16: true\nnum_processes: 3\n");
  EXPECT_EQ(output({"config", "update", "--config_file", "old.yaml"}), "Updated old.yaml.\n");
  const auto file = read_file("old.yaml");
  for (const char* line : {"distributed_type: MULTI_CPU\n", "mixed_precision: fp16\n",
                           "num_processes: 3\n", "rdzv_backend: static\n"}) {
    EXPECT_THAT(file, HasSubstr(line));
  }
  EXPECT_EQ(output({"config", "update", "--config_file", "old.yaml"}),
            "old.yaml has today's keys.\n");
  EXPECT_THAT(refusal({"config", "update"}),
              HasSubstr("default_config.yaml: no such file; write one with tessera config"));
  folder_.write("old.yaml", "distributed_type: MULTI_CPU\nnum_proceses: 3\n");
  EXPECT_THAT(refusal({"config", "update", "--config_file", "old.yaml"}),
              HasSubstr("did you mean 'num_processes'?"));
}

TEST_F(SurfaceTest, AtATerminalArrowKeysPick) {
  folder_.write("mine.yaml", "precious\n");
  const auto config_at = [&](Terminal& terminal) {
    return launch::spawn({.program = TESSERA_PROGRAM,
                          .arguments = {"tessera", "config", "--config_file", "mine.yaml"},
                          .environment = {"TERM=xterm", "PATH=/usr/bin:/bin"},
                          .stdin_fd = terminal.fd(),
                          .stdout_fd = terminal.fd(),
                          .stderr_fd = terminal.fd()});
  };
  const auto exit_code = [](pid_t pid) {
    int status = 0;
    ::waitpid(pid, &status, 0);
    return WEXITSTATUS(status);
  };
  Terminal patient;
  const auto keeps = config_at(patient);
  patient.wait_for("2. yes");
  patient.type("\r");
  patient.wait_for("Kept mine.yaml");
  EXPECT_EQ(exit_code(keeps), 0);
  Terminal hasty;
  const auto ends = config_at(hasty);
  hasty.wait_for("2. yes");
  hasty.type("\x1b[B\r");
  hasty.wait_for("This machine: ");
  hasty.type("\x04");
  EXPECT_THAT(hasty.wait_for("nothing was written"), HasSubstr("the input ended"));
  EXPECT_EQ(exit_code(ends), kUserErrorExit);
  EXPECT_TRUE(hasty.reads_by_line());
  EXPECT_EQ(read_file("mine.yaml"), "precious\n");
}

TEST_F(SurfaceTest, EnvSaysWhatMattersAndNoSecrets) {
  output({"config", "default"});
  const std::map<std::string, std::string> environment{
      {"HF_TOKEN", "hf_very_secret"},
      {"HF_ENDPOINT", "https://me:password1@hub.example/x"},
      {"FSDP_VERSION", "2"},
      {"ACCELERATE_MANY", "[A=1, WANDB_API_KEY=password2]"},
      {"UNRELATED", "unrelated"}};
  const auto text = run({"env"}, "", environment).out;
  for (const char* line :
       {"- Tessera: ", "- LibTorch: 2.", "- Memory: ", "- GPUs: ", "  - FSDP_VERSION: 2\n",
        "  - HF_TOKEN: (hidden)\n", "  - HF_ENDPOINT: https://(hidden)@hub.example/x\n",
        "  - compute_environment: LOCAL_MACHINE\n"}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
  for (const char* word : {"very_secret", "password1", "password2", "UNRELATED"}) {
    EXPECT_THAT(text, Not(HasSubstr(word)));
  }
  const auto about = nlohmann::json::parse(run({"env", "--json"}, "", environment).out);
  EXPECT_GE(about["cores"], 1);
  EXPECT_GT(about["memory_bytes"], 0);
  EXPECT_EQ(about["environment"]["HF_TOKEN"], "(hidden)");
  EXPECT_EQ(about["configuration"]["settings"]["compute_environment"], "LOCAL_MACHINE");
}

TEST_F(SurfaceTest, EnvHelpsWithABrokenConfiguration) {
  EXPECT_THAT(output({"env"}), HasSubstr("default_config.yaml (not there)\n"));
  folder_.write("hf/accelerate/default_config.yaml", "distributed_tipe: NO\n");
  EXPECT_THAT(output({"env"}), HasSubstr("did you mean 'distributed_type'?"));
  EXPECT_THAT(refusal({"env", "--config_file", "absent.yaml"}), HasSubstr("absent.yaml"));
  EXPECT_EQ(refusal({"env", "--jsn"}),
            "unknown command or option '--jsn'; did you mean '--json'?; see tessera --help");
}

/// What bash offers for the last of `words`.
std::string completed(const std::string& words) {
  write_file("complete.sh", fmt::format("source <('{}' completion bash)\n"
                                        "COMP_WORDS=({}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))\n"
                                        "compopt() {{ :; }}\n"  // of a running completion alone
                                        "_tessera && echo \"${{COMPREPLY[*]}}\"\n",
                                        TESSERA_PROGRAM, words));
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(::popen("bash complete.sh", "r"), ::pclose);
  std::string text;
  for (int c = 0; (c = std::fgetc(pipe.get())) != EOF;) text += static_cast<char>(c);
  return text;
}

TEST_F(SurfaceTest, BashCompletesCommandsOptionsAndKeys) {
  EXPECT_EQ(completed("tessera tok"), "tokenize\n");
  EXPECT_EQ(completed("tessera checkpoint ver"), "verify\n");
  EXPECT_EQ(completed("tessera checkpoint inspect run --t"), "--tensors\n");
  EXPECT_EQ(completed("tessera train job.yaml --parallel.pl"), "--parallel.placement=\n");
  EXPECT_EQ(completed("tessera train job.yaml --parallel.placement = full"), "full_shard\n");
  EXPECT_EQ(completed("tessera train job.yaml --data.shuffle ="), "true false\n");
  EXPECT_EQ(completed("tessera train job.yaml --train.steps ="), "\n");
  EXPECT_EQ(completed("tessera tokenize --parallel.pl"), "\n");
  EXPECT_EQ(completed("tessera completion b"), "bash\n");
  EXPECT_EQ(completed("tessera schedule ZB-H"), "ZB-H1 ZB-H2\n");
  EXPECT_EQ(completed("tessera checkpoint convert run -o out --to h"), "huggingface\n");
  EXPECT_EQ(completed("tessera estimate-memory llama --placement ''"),
            "replicate shard_optimizer shard_gradients full_shard\n");
  EXPECT_EQ(completed("tessera export run out.gguf --to = g"), "gguf\n");
  EXPECT_EQ(completed("tessera launch -n 4 tessera train job.yaml --parallel.pl"),
            "--parallel.placement=\n");
  EXPECT_EQ(refusal({"completion", "fish"}), "completion: expected bash or zsh, got 'fish'");
  EXPECT_THAT(output({"completion", "zsh"}), HasSubstr("'--parallel.placement=:"));
}

/// The words of a command that its help lists under "Subcommands:".
std::vector<Arguments> subcommands(const Arguments& command, const std::string& help) {
  std::vector<Arguments> found;
  const auto begin = help.find("\nSubcommands:\n");
  if (begin == std::string::npos) return found;
  std::istringstream lines(help.substr(begin + 14));
  for (std::string line; std::getline(lines, line) && line.starts_with("  ");) {
    if (line.starts_with("   ")) continue;  // a description goes on
    auto words = command;
    words.push_back(line.substr(2, line.find(' ', 2) - 2));
    found.push_back(words);
  }
  return found;
}

/// Every command's words, with its help.
std::vector<std::pair<Arguments, std::string>> helps(
    const std::function<std::string(const Arguments&)>& output) {
  std::vector<std::pair<Arguments, std::string>> found{{{}, output({"--help"})}};
  for (size_t i = 0; i < found.size(); ++i) {
    for (auto& command : subcommands(found[i].first, found[i].second)) {
      auto arguments = command;
      arguments.push_back("--help");
      found.emplace_back(std::move(command), output(arguments));
    }
  }
  return found;
}

TEST_F(SurfaceTest, HelpOfEveryCommandHasAnExample) {
  const auto commands = helps([&](const Arguments& arguments) { return output(arguments); });
  for (const auto& [words, help] : commands) {
    EXPECT_THAT(help, HasSubstr("\nExample")) << ::testing::PrintToString(words);
  }
  EXPECT_GT(commands.size(), 15u);
}

/// Without roff's own signs.
std::string read_page(const std::string& file) {
  auto text = read_file(file);
  for (const auto& [sign, letter] : {std::pair("\\-", "-"), {"\\&", ""}, {"\\e", "\\"}}) {
    for (auto at = text.find(sign); at != std::string::npos; at = text.find(sign, at + 1)) {
      text.replace(at, 2, letter);
    }
  }
  return text;
}

TEST_F(SurfaceTest, EveryCommandHasAManualPageOfWhatItsHelpSays) {
  const auto commands = helps([&](const Arguments& arguments) { return output(arguments); });
  EXPECT_EQ(output({"man", "man1"}), fmt::format("wrote {} pages into man1\n", commands.size()));
  for (const auto& [words, help] : commands) {
    std::string name = "tessera";
    for (const auto& word : words) name += "-" + word;
    SCOPED_TRACE(name);
    const auto page = read_page(fmt::format("man1/{}.1", name));
    EXPECT_THAT(page, HasSubstr(".SH EXAMPLES\n.nf\n"));
    std::istringstream lines(help);
    for (std::string line; std::getline(lines, line);) {  // "  -n,--num-ranks INT=1  Processes .."
      if (!line.starts_with("  -") && !line.starts_with("  tessera")) continue;
      const auto begin = line.find_first_not_of(' ');
      const auto end = std::min(line.find("  ", begin), line.size());
      const auto shown = line.substr(begin, end - begin);
      EXPECT_NE(page.find(shown), std::string::npos) << shown;
    }
  }
  EXPECT_THAT(read_page("man1/tessera-train.1"), HasSubstr("--parallel.placement"));
  write_file("file", "");
  EXPECT_THAT(refusal({"man", "file/man1"}), HasSubstr("give another folder"));
}

}  // namespace
}  // namespace tessera
