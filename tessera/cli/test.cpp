// tessera test: is this set-up working?
#include <memory>
#include <string>
#include <vector>

#include "tessera/cli/commands.h"
#include "tessera/cli/launch_options.h"
#include "tessera/cli/launch_settings.h"
#include "tessera/cli/worker_program.h"
#include "tessera/launch/launch.h"
#include "tessera/launch/rank_environment.h"

namespace tessera::cli {
namespace {

constexpr const char* kTestFooter =
    R"(Checks devices, every collective with every averaging operation, and training steps under each
placement against one rank alone. Exit code 1 if anything is wrong. To check several machines, start
it under what starts your jobs (tessera launch, torchrun, srun, mpirun).
Examples:
  tessera test -n 2
  tessera test --config_file accelerate.yaml)";

struct TestArguments {
  int num_processes = 0;  // 0: not given
  std::string config_file;
  bool cpu = false;
};

int test(const TestArguments& arguments) {
  int processes = num_ranks(-1);
  config::RunConfig config;
  bool cpu = arguments.cpu;
  AccelerateRequest request{.config_file = arguments.config_file, .quiet = true};
  if (cpu) request.settings.set({.key = "use_cpu", .value = "true", .origin = "--cpu"});
  if (arguments.num_processes > 0) request.processes_per_machine = arguments.num_processes;
  if (const auto file = configuration_file(request); !file.empty()) {
    const auto plan = accelerate_run(request, file, "tessera test").translation.launch;
    processes = plan.num_processes / plan.num_machines;
    cpu = plan.cpu;
  } else if (arguments.num_processes > 0) {
    processes = arguments.num_processes;
  }
  if (cpu) config.parallel.backend = comm::BackendChoice::gloo;
  const std::vector<std::string> command{worker_path(), kSelfTest,
                                         file_for_ranks(config::to_yaml(config))};
  if (launch::rank_environment()) become(command);
  return launch::launch({.command = command,
                         .num_processes = processes,
                         .output = launch::OutputMode::plain,
                         .pass_listen_socket = true});
}

}  // namespace

void add_test(CLI::App& app, int& exit_code) {
  auto arguments = std::make_shared<TestArguments>();
  auto* command = app.add_subcommand("test", "Is this set-up working?");
  command
      ->add_option("-n,--num_processes,--num-processes", arguments->num_processes,
                   "Ranks on this machine; unset: as --config_file says, else one per two cores")
      ->check(CLI::Range(1, 1024));
  command->add_option("--config_file,--config-file", arguments->config_file,
                      "Accelerate's configuration; the default one, if there is one, unless given");
  command->add_flag("--cpu", arguments->cpu, "Even where there are GPUs");
  command->footer(kTestFooter);
  command->callback([arguments, &exit_code] { exit_code = test(*arguments); });
}

}  // namespace tessera::cli
