// tessera launch: starts the ranks of any program on this machine.
#include "tessera/launch/launch.h"

#include <memory>
#include <string>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/nearest.h"
#include "tessera/cli/commands.h"

namespace tessera::cli {
namespace {

constexpr const char* kFooter =
    R"(Everything after PROGRAM belongs to it. The ranks get torchrun's environment (RANK, WORLD_SIZE, MASTER_ADDR, ..).
Examples:
  tessera launch -n 4 ./my_program --its-own=options
  tessera launch -n 8 --nnodes=2 --node-rank=0 --master-addr=10.0.0.1 --master-port=29500 ./my_program   (on the first machine)
  tessera launch -n 8 --nnodes=2 --node-rank=1 --master-addr=10.0.0.1 --master-port=29500 ./my_program   (on the second))";

/// What stands behind our options. CLI11 leaves the first word that it does not know and all after
/// it: that word is the program, unless it looks like an option.
std::vector<std::string> program_and_arguments(const CLI::App& command) {
  const auto words = command.remaining();
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

void check_machines(const CLI::App& command, const launch::LaunchOptions& options) {
  if (options.num_nodes > 1) {
    for (const char* name : {"--master-addr", "--master-port", "--node-rank"}) {
      if (command.count(name) == 0)
        user_error("launch: --nnodes={} needs {} as well", options.num_nodes, name);
    }
  }
  if (command.count("--master-port") > 0 && options.master_port == 0) {
    user_error("launch: --master-port: expected 1 to 65535, got 0");
  }
}

}  // namespace

void add_launch(CLI::App& app, int& exit_code) {
  auto* command =
      app.add_subcommand("launch", "Start N processes of any program as the ranks of one job");
  auto options = std::make_shared<launch::LaunchOptions>();
  auto no_prefix = std::make_shared<bool>(false);
  command->footer(kFooter);
  command->prefix_command();
  command
      ->add_option("-n,--num-processes,--nproc-per-node,--nproc_per_node", options->num_processes,
                   "Processes on this machine")
      ->capture_default_str();
  command->add_option("--nnodes", options->num_nodes, "Machines; run the launcher on each")
      ->capture_default_str();
  command
      ->add_option("--node-rank,--node_rank", options->node_rank, "Which of them this is, from 0")
      ->capture_default_str();
  command->add_option("--master-addr,--master_addr", options->master_addr, "Host of rank 0")
      ->capture_default_str();
  command->add_option("--master-port,--master_port", options->master_port,
                      "Port on it; on one machine a free one is found");
  command
      ->add_option("--max-restarts,--max_restarts", options->max_restarts,
                   "How often all ranks are started again after a failure")
      ->capture_default_str();
  command->add_option("--log-dir,--log_dir", options->log_dir,
                      "Also write each rank's output to DIR/rank_N.log");
  command->add_flag("--no-prefix", *no_prefix,
                    "Show rank 0 only, unchanged, and others only as a failure's cause");
  command->callback([command, options, no_prefix, &exit_code] {
    options->command = program_and_arguments(*command);
    check_machines(*command, *options);
    if (*no_prefix) options->output = launch::OutputMode::plain;
    exit_code = launch::launch(*options);
  });
}

}  // namespace tessera::cli
