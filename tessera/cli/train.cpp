// tessera train JOB.yaml: starts its own ranks on this machine, or joins those it was started with.
#include "tessera/cli/train.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/cli/adapter_run.h"
#include "tessera/cli/commands.h"
#include "tessera/cli/launch_options.h"
#include "tessera/cli/stored_model.h"
#include "tessera/cli/worker_program.h"
#include "tessera/config/run_config.h"
#include "tessera/launch/launch.h"
#include "tessera/launch/rank_environment.h"
#include "tessera/plan/run_plan.h"
#include "tessera/report/clock.h"

namespace tessera::cli {
namespace {

namespace fs = std::filesystem;
using Overrides = std::vector<config::Override>;

constexpr const char* kExample =
    "Examples:\n"
    "  tessera train recipes/tiny_llama.yaml --data.train=FOLDER --train.steps=200\n"
    "  tessera train JOB.yaml --config_file fsdp.yaml --cpu\n"
    "  tessera train tiny_llama --data.train=FOLDER          (a recipe that was installed)\n\n"
    "Every key of the job file can be set on the command line as --section.key=value:\n\n";

struct TrainArguments {
  std::string job, resume, config_file;
  bool print_config = false, strict = false, cpu = false;
};

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

using Ranks = std::optional<launch::RankEnvironment>;

/// What an Accelerate configuration asks: --config_file, or the one with which a launcher started
/// this rank. As many processes as there are, or as the command line says.
std::optional<AccelerateRun> accelerate_run_of(const TrainArguments& arguments,
                                               const Overrides& own, const Ranks& ranks) {
  namespace accelerate = config::accelerate;
  const auto& file = arguments.config_file;
  AccelerateRequest request{.config_file = file, .strict = arguments.strict};
  if (file.empty()) {
    if (ranks) request.settings = accelerate::settings_from_environment(std::getenv);
    if (request.settings.all().empty()) return {};
  }
  const auto set = [&](const char* key, auto value, const std::string& origin) {
    request.settings.set({.key = key, .value = fmt::format("{}", value), .origin = origin});
  };
  if (arguments.cpu) set("use_cpu", true, "--cpu");
  for (const auto& [key, value, origin, if_effective] : own) {
    if (key != "parallel.num_ranks" || ranks) continue;
    const auto asked = config::load_run_config("", {{key, value}}).config.parallel.num_ranks;
    set("num_processes", num_ranks(asked), "--" + key);
  }
  if (ranks) {
    set("num_processes", ranks->world_size, ranks->source);
    set("num_machines", ranks->world_size / ranks->local_world_size, ranks->source);
    set("machine_rank", ranks->node_rank, ranks->source);
    set("main_process_ip", ranks->master_addr, ranks->source);
  }
  request.quiet = file.empty() || (ranks && ranks->rank > 0);  // the launcher has told it
  auto run = accelerate_run(request, file, "tessera train");
  const auto machines = run.translation.launch.num_machines;
  if (!ranks && machines > 1) {
    user_error(
        "{}: num_machines {}: tessera train starts ranks on one; start tessera launch "
        "--config_file {} tessera train {} on each",
        run.settings.find("num_machines")->origin, machines, file, arguments.job);
  }
  return run;
}

/// gradient_accumulation_steps in our words: each rank's share of the global batch in so many
/// portions.
config::Override micro_batch(const config::accelerate::Setting& steps,
                             const config::RunConfig& config) {
  const auto count = std::stoll(steps.value);
  const auto sizes = config::mesh_shape(config.parallel, config.parallel.num_ranks);
  const auto* mesh = std::get_if<mesh::MeshShape>(&sizes);  // what is wrong with it check() tells
  const int64_t global = config.train.global_batch,
                ranks = mesh == nullptr ? 1 : mesh->data_ranks();
  if (global % (ranks * count) != 0) {
    user_error(
        "{}: {} {}: the {} sequences of train.global_batch cannot be divided over {} ranks and {} "
        "portions",
        steps.origin, steps.key, steps.value, global, ranks, count);
  }
  return {.key = "train.micro_batch",
          .value = fmt::format("{}", global / ranks / count),
          .origin = steps.origin};
}

/// UserError for a number of ranks that another launcher did not start, neither on this machine nor in all.
void check_num_ranks(int64_t asked, const std::string& origin,
                     const launch::RankEnvironment& ranks) {
  if (asked == -1 || origin == "default") return;
  if (asked == ranks.local_world_size || asked == ranks.world_size) return;
  user_error(
      "{}: parallel.num_ranks {}, but this is one of {} ranks ({}'s variables); set it to {}, or "
      "to "
      "-1 for as many as there are",
      origin, asked, ranks.world_size, ranks.source, ranks.world_size);
}

/// The job file with what takes the place of its values: first the Accelerate configuration's, then
/// the command line's.
config::LoadedConfig load(const TrainArguments& arguments, const Overrides& overrides,
                          const Ranks& ranks) {
  auto loaded = config::load_run_config(arguments.job, overrides);
  auto& parallel = loaded.config.parallel;
  auto& origin = loaded.origins["parallel.num_ranks"];
  if (ranks) {
    check_num_ranks(parallel.num_ranks, origin, *ranks);
    parallel.num_ranks = ranks->world_size;
    origin = ranks->source;
  }
  parallel.num_ranks = num_ranks(parallel.num_ranks);
  return loaded;
}

/// UserError, before ranks start, for heads, stages or a schedule that cannot be.
void check_plan(const config::RunConfig& config) {
  const auto shape = config::resolve_model_shape(config.model);
  plan::make_plan(with_stored_adapter(config, shape), shape);
}

/// Names of data sets get the commit that is downloaded here, so that every rank reads the same.
void pin_data(config::DataSection& data) {
  for (auto* entries : {&data.train, &data.validation, &data.choices}) {
    for (auto& entry : *entries) entry = data_files(entry).pinned;
  }
}

int train(const TrainArguments& arguments, Overrides overrides) {
  const auto ranks = launch::rank_environment();
  launch::LaunchOptions start{.output = launch::OutputMode::plain, .pass_listen_socket = true};
  if (const auto run = accelerate_run_of(arguments, overrides, ranks)) {
    const auto& [ledger, job, accumulation, plan] = run->translation;
    overrides.insert(overrides.begin(), job.begin(), job.end());
    if (accumulation) {
      overrides.insert(overrides.begin(),
                       micro_batch(*accumulation, load(arguments, overrides, ranks).config));
    }
    start.environment = config::accelerate::environment_of(run->settings);
    start.master_port = plan.main_process_port;
    start.other_port_if_busy = true;
  }
  auto loaded = load(arguments, overrides, ranks);
  if (const auto& path = loaded.config.model.path; !path.empty() && !arguments.print_config) {
    overrides.push_back(
        {.key = "model.path",
         .value = model_folder(path, loaded.config.model.init == models::Init::pretrained)});
    loaded = load(arguments, overrides, ranks);
  }
  config::check(loaded.config, loaded.origins);
  if (arguments.print_config) {
    fmt::print("{}", config::print_config(loaded));
    return 0;
  }
  pin_data(loaded.config.data);
  check_plan(loaded.config);
  if (!ranks || ranks->rank == 0) check_run_dir(loaded.config.train.run_dir);
  start.command = {worker_path(), file_for_ranks(config::to_yaml(loaded.config))};
  if (ranks) become(start.command);
  start.num_processes = static_cast<int>(loaded.config.parallel.num_ranks);
  start.environment[report::kLaunchTimeVariable] = fmt::format("{:.6f}", report::boot_seconds());
  start.signal_grace = signal_grace(loaded.config);
  return launch::launch(start);
}

}  // namespace

Overrides parse_overrides(const std::vector<std::string>& arguments, const char* command) {
  Overrides overrides;
  for (const auto& argument : arguments) {
    if (!argument.starts_with("--") || argument.find('=') == std::string::npos) {
      user_error("unknown option '{}'; expected --section.key=value, see tessera {} --help",
                 argument, command);
    }
    overrides.push_back(config::parse_override(argument.substr(2)));
  }
  return overrides;
}

int train_job(const std::string& job, const Overrides& overrides) {
  return train({.job = job}, overrides);
}

void add_train(CLI::App& app, int& exit_code) {
  auto arguments = std::make_shared<TrainArguments>();
  auto* command = app.add_subcommand("train", "Train a model as a job file says");
  command->add_option("JOB", arguments->job, "Job file (YAML), or an installed recipe's name")
      ->required();
  command->add_flag("--print-config", arguments->print_config,
                    "Show the configuration and where each value came from");
  command->add_option("--resume", arguments->resume,
                      "Go on from a checkpoint: auto, or its folder (--checkpoint.resume)");
  command->add_option("--config_file,--config-file", arguments->config_file,
                      "Accelerate's YAML or JSON: takes the place of the job file's values, see "
                      "tessera config show");
  command->add_flag("--strict", arguments->strict, "Refuse keys of it that have no effect here");
  command->add_flag("--cpu", arguments->cpu, "Try it on the CPU, whatever it asks for");
  command->allow_extras();
  command->footer([] { return kExample + config::config_help(); });
  command->callback([command, arguments, &exit_code] {
    arguments->job = job_file(arguments->job);
    auto overrides = parse_overrides(command->remaining(), "train");
    if (!arguments->resume.empty()) {
      const bool twice = std::ranges::any_of(
          overrides, [](const auto& given) { return given.key == "checkpoint.resume"; });
      if (twice) user_error("train: --resume and --checkpoint.resume are one; give one");
      overrides.push_back({.key = "checkpoint.resume", .value = arguments->resume});
    }
    if (arguments->config_file.empty() && (arguments->strict || arguments->cpu)) {
      user_error("train: --strict and --cpu are of a --config_file; give one");
    }
    exit_code = train(*arguments, overrides);
  });
}

}  // namespace tessera::cli
