// tessera config: asks questions and writes Accelerate's file; also the basic file, and an old file
// with today's keys.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <memory>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/nearest.h"
#include "tessera/base/units.h"
#include "tessera/cli/choices.h"
#include "tessera/cli/commands.h"
#include "tessera/cli/menu.h"
#include "tessera/cli/output_file.h"
#include "tessera/config/accelerate/questions.h"
#include "tessera/launch/process.h"
#include "tessera/report/terminal.h"

namespace tessera::cli {
namespace {

namespace fs = std::filesystem;
using namespace config::accelerate;

constexpr const char* kQuestionFooter =
    R"(Without a subcommand: asks questions, then writes the file that
tessera launch and tessera train take with --config_file (and accelerate launch, too).
Examples:
  tessera config
  tessera config --config_file fsdp.yaml
  yes '' | tessera config --yes      (the default answer to each question))";

struct QuestionArguments {
  std::string config_file;  ///< "": Accelerate's default place
  std::string mixed_precision = "no";
  bool yes = false;
};

fs::path file_of(const QuestionArguments& arguments) {
  return arguments.config_file.empty() ? default_config_file() : fs::path(arguments.config_file);
}

/// The file to write, which the user is known to want written.
fs::path writable_file(const QuestionArguments& arguments) {
  auto file = file_of(arguments);
  if (file.extension() == ".json") {
    user_error("{}: what is written is YAML; choose a name that ends in .yaml", file.string());
  }
  check_output(file, "set --config_file");
  return file;
}

void write_settings(const fs::path& file, const Settings& settings) {
  write_output(file, to_yaml(settings));
}

bool is_conversation() {
  return report::is_capable_terminal(STDIN_FILENO) && report::is_capable_terminal(STDOUT_FILENO);
}

std::string ask(const Question& question) {
  if (question.choices.empty()) {
    return ask_line(question.text, question.default_value, question.problem);
  }
  std::vector<MenuItem> items;
  std::vector<std::string> words;
  size_t first = 0;
  for (const auto& choice : question.choices) {
    if (choice.value == question.default_value) first = items.size();
    items.push_back({choice.label, choice.consequence});
    words.push_back(choice.value);
  }
  const auto picked = is_conversation() ? pick(question.text, items, first, STDIN_FILENO)
                                        : pick_by_line(question.text, items, first, words);
  return question.choices[picked].value;
}

bool may_replace(const fs::path& file, const QuestionArguments& arguments) {
  std::error_code unreadable;
  if (arguments.yes || !fs::exists(file, unreadable)) return true;
  return ask({.text = fmt::format("{} exists. Is it replaced?", file.string()),
              .choices = {{"no", "no", ""}, {"yes", "yes", ""}},
              .default_value = "no"}) == "yes";
}

bool has_slurm() {
  if (std::getenv("SLURM_JOB_ID") != nullptr) return true;
  try {
    launch::find_program("sbatch");
    return true;
  } catch (const UserError&) {
    return false;
  }
}

void describe(const Surroundings& here) {
  const auto& machine = here.machine;
  fmt::print("This machine: {} cores, {} of memory, {}{}.\n", machine.num_cores,
             format_bytes(machine.memory_bytes),
             machine.gpus.empty()
                 ? "no GPU"
                 : fmt::format("{} GPUs ({})", machine.gpus.size(), machine.gpus.front()),
             here.slurm ? ", Slurm" : "");
}

/// Tells the user what to do with the file.
void say_how_to_use(const fs::path& file, const Settings& settings, const Surroundings& here) {
  const bool is_default = file == default_config_file();
  const auto option = is_default ? "" : fmt::format(" --config_file {}", file.string());
  fmt::print("Wrote {}. Its use:\n", file.string());
  if (settings.integer("num_machines") > 1 && here.slurm) {
    fmt::print(
        "  srun --ntasks-per-node=1 sh -c 'tessera launch{} --machine_rank $SLURM_NODEID "
        "--main_process_ip HOST --main_process_port PORT PROGRAM'\n",
        option);
    return;
  }
  fmt::print("  tessera launch{} PROGRAM\n  tessera train JOB.yaml --config_file {}\n", option,
             file.string());
  if (settings.integer("num_machines") > 1) {
    fmt::print("On each other machine as well, with --machine_rank 1, 2, ..\n");
  }
}

int run_questions(const QuestionArguments& arguments) {
  const auto file = writable_file(arguments);
  if (!may_replace(file, arguments)) {
    fmt::print("Kept {}; nothing was written.\n", file.string());
    return 0;
  }
  const Surroundings here{.machine = this_machine(), .slurm = has_slurm()};
  describe(here);
  Answers answers;
  while (const auto question = next_question(here, answers)) {
    answers[question->name] = ask(*question);
  }
  const auto settings = settings_from_answers(here, answers);
  write_settings(file, settings);
  say_how_to_use(file, settings, here);
  return 0;
}

void write_default(const QuestionArguments& arguments) {
  const std::vector<std::string> known{"no", "fp16", "bf16"};
  const auto& precision = arguments.mixed_precision;
  if (std::find(known.begin(), known.end(), precision) == known.end()) {
    user_error("config: --mixed_precision: expected no, fp16 or bf16, got '{}'{}", precision,
               did_you_mean(precision, known));
  }
  const auto file = writable_file(arguments);
  if (fs::exists(file) && !arguments.yes) {
    user_error("{}: exists; replace it with --yes, or set --config_file", file.string());
  }
  const Surroundings here{.machine = this_machine()};
  const auto settings = basic_settings(here.machine, precision);
  write_settings(file, settings);
  say_how_to_use(file, settings, here);
}

void update(const QuestionArguments& arguments) {
  if (arguments.config_file.empty() && !fs::exists(default_config_file())) {
    user_error("{}: no such file; write one with tessera config", default_config_file().string());
  }
  auto settings = read_settings(file_of(arguments));
  const auto file = writable_file(arguments);
  complete(settings);
  if (to_yaml(settings) == read_file(file)) {
    fmt::print("{} has today's keys.\n", file.string());
    return;
  }
  write_settings(file, settings);
  fmt::print("Updated {}.\n", file.string());
}

void add_file_option(CLI::App& command, const std::shared_ptr<QuestionArguments>& arguments,
                     const char* what) {
  command.add_option("--config_file,--config-file", arguments->config_file,
                     std::string(what) + "; $HF_HOME/accelerate/default_config.yaml unless given");
}

void add_yes_flag(CLI::App& command, const std::shared_ptr<QuestionArguments>& arguments) {
  command.add_flag("-y,--yes", arguments->yes, "Replace a file that exists");
}

void add_default(CLI::App& app, const std::shared_ptr<QuestionArguments>& arguments,
                 int& exit_code) {
  auto* command =
      app.add_subcommand("default", "Write the basic file: one process, or one per GPU");
  add_file_option(*command, arguments, "File to write");
  add_yes_flag(*command, arguments);
  takes(command->add_option("--mixed_precision,--mixed-precision", arguments->mixed_precision,
                            "no unless given"),
        {"no", "fp16", "bf16"});
  command->footer(
      "Example:\n  tessera config default --mixed_precision bf16 --config_file bf16.yaml");
  command->callback([arguments, &exit_code] {
    write_default(*arguments);
    exit_code = 0;
  });
}

void add_update(CLI::App& app, const std::shared_ptr<QuestionArguments>& arguments,
                int& exit_code) {
  auto* command =
      app.add_subcommand("update", "Bring a file to today's keys; values stay, comments do not");
  add_file_option(*command, arguments, "File to update");
  command->footer("Example:\n  tessera config update --config_file old.yaml");
  command->callback([arguments, &exit_code] {
    update(*arguments);
    exit_code = 0;
  });
}

}  // namespace

void add_config_questions(CLI::App& config, int& exit_code) {
  const auto arguments = std::make_shared<QuestionArguments>();
  config.footer(kQuestionFooter);
  add_file_option(config, arguments, "File to write");
  add_yes_flag(config, arguments);
  add_default(config, arguments, exit_code);
  add_update(config, arguments, exit_code);
  config.callback([&config, arguments, &exit_code] {
    if (config.get_subcommands().empty()) exit_code = run_questions(*arguments);
  });
}

}  // namespace tessera::cli
