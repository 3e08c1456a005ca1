// tessera train JOB.yaml: starts its own ranks on this machine, or joins those it was started with.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <thread>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/units.h"
#include "tessera/cli/commands.h"
#include "tessera/config/run_config.h"
#include "tessera/hub/resolve.h"
#include "tessera/launch/launch.h"
#include "tessera/launch/rank_environment.h"
#include "tessera/report/clock.h"

namespace tessera::cli {
namespace {

constexpr const char* kExample =
    "Example:\n  tessera train recipes/tiny_llama.yaml --parallel.num_ranks=2 --train.steps=200\n\n"
    "Every key of the job file can be set on the command line as --section.key=value:\n\n";

/// tessera-worker stands beside tessera.
std::string worker_path() {
  return (std::filesystem::read_symlink("/proc/self/exe").parent_path() / "tessera-worker")
      .string();
}

std::vector<std::string> worker_command(const std::string& job,
                                        const std::vector<std::string>& overrides) {
  std::vector<std::string> command{worker_path(), job};
  command.insert(command.end(), overrides.begin(), overrides.end());
  return command;
}

[[noreturn]] void become(const std::vector<std::string>& command) {
  std::vector<char*> arguments;
  for (const auto& argument : command) arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);
  ::execv(arguments[0], arguments.data());
  system_error(command[0] + ": cannot be started");
}

/// "--section.key=value" -> "section.key=value".
std::vector<std::string> parse_overrides(const std::vector<std::string>& arguments) {
  std::vector<std::string> overrides;
  for (const auto& argument : arguments) {
    if (!argument.starts_with("--") || argument.find('=') == std::string::npos) {
      user_error("unknown option '{}'; expected --section.key=value, see tessera train --help",
                 argument);
    }
    overrides.push_back(argument.substr(2));
  }
  return overrides;
}

/// How many ranks this machine starts: as many as asked for, or one per two cores.
int64_t num_ranks(int64_t asked) {
  return asked > 0 ? asked : std::max<int64_t>(1, std::thread::hardware_concurrency() / 2);
}

void check_run_dir(const std::string& folder) {
  const auto reason = why_not_writable(folder);
  if (reason.empty()) return;
  user_error("train.run_dir: expected a folder that can be written, got '{}' ({}); set another one",
             folder, reason);
}

/// How long ranks may take to end: a step and a save, if they save.
std::chrono::milliseconds signal_grace(const config::RunConfig& config) {
  if (!config.checkpoint.saves()) return launch::LaunchOptions{}.signal_grace;
  return std::chrono::milliseconds(static_cast<int64_t>(config.parallel.timeout_seconds * 1000));
}

/// A model's name on the Hugging Face Hub becomes the folder of its files; a line where there is
/// something to wait for.
std::string model_folder(const config::ModelSection& model) {
  constexpr int64_t kStep = 10;  // percent
  int64_t shown = -kStep;
  return hub::resolve(
             model.path,
             {.weights = model.init == "pretrained",
              .on_progress =
                  [&](const hub::Progress& progress) {
                    const int64_t percent =
                        100 * progress.done_bytes / std::max<int64_t>(1, progress.total_bytes);
                    if (percent < shown + kStep) return;
                    shown = percent;
                    fmt::print(stderr, "fetching {}: {} %, {} of {}\n", model.path, percent,
                               format_bytes(progress.done_bytes),
                               format_bytes(progress.total_bytes));
                  },
              .on_notice = [](const std::string& line) { fmt::print(stderr, "{}\n", line); }})
      .string();
}

int train(const std::string& job, std::vector<std::string> overrides, bool print_only) {
  auto loaded = config::load_run_config(job, overrides);
  if (const auto& path = loaded.config.model.path; !path.empty() && !print_only) {
    overrides.push_back("model.path=" + model_folder(loaded.config.model));
    loaded = config::load_run_config(job, overrides);
  }
  const auto environment = launch::rank_environment();
  if (environment) {
    loaded.config.parallel.num_ranks = environment->world_size;
    loaded.origins["parallel.num_ranks"] = environment->source;
  }
  loaded.config.parallel.num_ranks = num_ranks(loaded.config.parallel.num_ranks);
  config::check(loaded.config, loaded.origins);
  if (print_only) {
    fmt::print("{}", config::print_config(loaded));
    return 0;
  }
  if (!environment || environment->rank == 0) check_run_dir(loaded.config.train.run_dir);
  const auto command = worker_command(job, overrides);
  if (environment) become(command);
  return launch::launch({.command = command,
                         .num_processes = static_cast<int>(loaded.config.parallel.num_ranks),
                         .output = launch::OutputMode::plain,
                         .environment = {{report::kLaunchTimeVariable,
                                          fmt::format("{:.6f}", report::boot_seconds())}},
                         .pass_listen_socket = true,
                         .signal_grace = signal_grace(loaded.config)});
}

}  // namespace

void add_train(CLI::App& app, int& exit_code) {
  struct Arguments {
    std::string job;
    bool print_config = false;
    std::string resume;
  };
  auto arguments = std::make_shared<Arguments>();
  auto* command = app.add_subcommand("train", "Train a model as a job file says");
  command->add_option("JOB", arguments->job, "Job file (YAML)")->required();
  command->add_flag("--print-config", arguments->print_config,
                    "Show the configuration and where each value came from");
  command->add_option("--resume", arguments->resume,
                      "Go on from a checkpoint: auto, or its folder (--checkpoint.resume)");
  command->allow_extras();
  command->footer([] { return kExample + config::config_help(); });
  command->callback([command, arguments, &exit_code] {
    auto overrides = parse_overrides(command->remaining());
    if (!arguments->resume.empty()) {
      overrides.push_back("checkpoint.resume=" + arguments->resume);
    }
    exit_code = train(arguments->job, overrides, arguments->print_config);
  });
}

}  // namespace tessera::cli
