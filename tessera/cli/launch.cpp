// tessera launch: starts the ranks of any program on this machine.
#include "tessera/launch/launch.h"

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/nearest.h"
#include "tessera/cli/commands.h"
#include "tessera/cli/launch_options.h"
#include "tessera/launch/process.h"

namespace tessera::cli {
namespace {

constexpr const char* kLaunchFooter =
    R"(Everything after PROGRAM belongs to it. A PROGRAM that ends in .py, and a module (-m), is started by $PYTHON, else python3.
The ranks get torchrun's environment (RANK, WORLD_SIZE, MASTER_ADDR, ..) and, with a configuration, Accelerate's.
Options of Accelerate may be spelt with - or _; each beats the configuration file, which beats its defaults.
Examples:
  tessera launch -n 4 ./my_program --its-own=options
  tessera launch --config_file fsdp.yaml train.py --its-own=options
  tessera launch --use_fsdp --fsdp_version 2 --num_processes 8 --mixed_precision bf16 train.py
  tessera launch --config_file eight_gpus.yaml --cpu -n 2 train.py   (tried on this machine's CPUs)
  tessera launch -n 8 --nnodes=2 --node-rank=0 --master-addr=10.0.0.1 --master-port=29500 ./my_program   (on the first machine)
  tessera launch -n 8 --nnodes=2 --node-rank=1 --master-addr=10.0.0.1 --master-port=29500 ./my_program   (on the second))";

/// What stands behind our options. CLI11 leaves the first word that it does not know and all after
/// it: that word is the program, unless it looks like an option.
std::vector<std::string> program_and_arguments(const CLI::App& command) {
  auto words = command.remaining();
  if (!words.empty() && words.front().starts_with('-')) {
    const auto name = words.front().substr(0, words.front().find('='));
    std::vector<std::string> known;
    for (const auto* option : command.get_options()) {
      for (const auto& long_name : option->get_lnames()) known.push_back("--" + long_name);
    }
    user_error("launch: unknown option '{}'{}", name, did_you_mean(name, known));
  }
  return words;
}

struct LaunchArguments {
  launch::LaunchOptions launch;
  AccelerateRequest accelerate;
  bool no_prefix = false, module = false, no_python = false;
};

/// Python's scripts and modules get an interpreter, which must not keep back what a rank prints.
std::vector<std::string> with_interpreter(std::vector<std::string> words,
                                          const LaunchArguments& arguments) {
  if (arguments.module && arguments.no_python) {
    user_error("launch: --module and --no_python contradict each other; give one of them");
  }
  const bool script = !words.empty() && words.front().ends_with(".py");
  if (words.empty() || arguments.no_python || !(script || arguments.module)) return words;
  if (!arguments.module && !std::filesystem::exists(words.front())) {
    user_error("launch: '{}' not found; give the script's path", words.front());
  }
  const char* python = std::getenv("PYTHON");
  std::vector<std::string> start{python != nullptr && *python != '\0' ? python : "python3", "-u"};
  if (arguments.module) start.push_back("-m");
  words.insert(words.begin(), start.begin(), start.end());
  return words;
}

/// The launcher's own options, as Accelerate's keys.
void take_own(const CLI::App& command, AccelerateRequest& request) {
  for (const auto& [option, key] : {std::pair{"--nnodes", "num_machines"},
                                    {"--node-rank", "machine_rank"},
                                    {"--master-addr", "main_process_ip"},
                                    {"--master-port", "main_process_port"}}) {
    if (command.count(option) == 0) continue;
    request.own.push_back(
        {.key = key, .value = command.get_option(option)->as<std::string>(), .origin = option});
  }
  if (command.count("-n") > 0) request.processes_per_machine = command.get_option("-n")->as<int>();
}

/// Is it this program, which takes over the port that the launcher has bound?
bool is_own_program(const std::vector<std::string>& command) {
  std::error_code ignored;
  return !command.empty() && std::filesystem::equivalent(launch::find_program(command.front()),
                                                         "/proc/self/exe", ignored);
}

void check_machines(const CLI::App& command, const launch::LaunchOptions& options) {
  if (options.num_nodes == 1) return;
  for (const char* name : {"--master-addr", "--master-port", "--node-rank"}) {
    if (command.count(name) == 0)
      user_error("launch: --nnodes={} needs {} as well", options.num_nodes, name);
  }
}

/// Before some thousand processes stand in each other's way, or files run out.
void check_processes(int num_processes) {
  constexpr int kMost = 1024;
  if (num_processes <= kMost) return;
  user_error(
      "launch: expected at most {} processes on a machine, got {}; set -n or --num_processes",
      kMost, num_processes);
}

int run_launch(const CLI::App& command, LaunchArguments& arguments) {
  auto& options = arguments.launch;
  options.command = with_interpreter(program_and_arguments(command), arguments);
  if (command.count("--master-port") > 0 && options.master_port == 0) {
    user_error("launch: --master-port: expected 1 to 65535, got 0");
  }
  take_own(command, arguments.accelerate);
  if (!apply(arguments.accelerate, options)) check_machines(command, options);
  check_processes(options.num_processes);
  if (arguments.no_prefix) options.output = launch::OutputMode::plain;
  options.pass_listen_socket = is_own_program(options.command);
  return launch::launch(options);
}

void add_own_options(CLI::App& command, LaunchArguments& arguments) {
  auto& options = arguments.launch;
  command
      .add_option("-n,--nproc-per-node,--nproc_per_node", options.num_processes,
                  "Processes on this machine")
      ->capture_default_str();
  command.add_option("--nnodes", options.num_nodes, "Machines; run the launcher on each")
      ->capture_default_str();
  command.add_option("--node-rank,--node_rank", options.node_rank, "Which of them this is, from 0")
      ->capture_default_str();
  command.add_option("--master-addr,--master_addr", options.master_addr, "Host of rank 0")
      ->capture_default_str();
  command.add_option("--master-port,--master_port", options.master_port,
                     "Port on it; on one machine a free one is found");
  command
      .add_option("--max-restarts,--max_restarts", options.max_restarts,
                  "How often all ranks are started again after a failure")
      ->capture_default_str();
  command.add_option("--log-dir,--log_dir", options.log_dir,
                     "Also write each rank's output to DIR/rank_N.log");
  command.add_option("--role", options.role, "ROLE_NAME of the ranks")->capture_default_str();
  command.add_flag("-m,--module", arguments.module, "PROGRAM is a module of Python");
  command.add_flag("--no-python,--no_python", arguments.no_python,
                   "Start PROGRAM as it is, even if it ends in .py");
  command.add_flag("--no-prefix", arguments.no_prefix,
                   "Show rank 0 only, unchanged, and others only as a failure's cause");
}

}  // namespace

void add_launch(CLI::App& app, int& exit_code) {
  auto* command =
      app.add_subcommand("launch", "Start N processes of any program as the ranks of one job");
  auto arguments = std::make_shared<LaunchArguments>();
  command->footer(kLaunchFooter);
  command->prefix_command();
  add_own_options(*command, *arguments);
  add_accelerate_options(*command, arguments->accelerate);
  command->callback(
      [command, arguments, &exit_code] { exit_code = run_launch(*command, *arguments); });
}

}  // namespace tessera::cli
