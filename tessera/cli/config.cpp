// tessera config show, migrate and docs: what a configuration comes to here, and every key that one
// may have. The questionnaire is config_questions.cpp.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/cli/commands.h"
#include "tessera/cli/output_file.h"
#include "tessera/config/accelerate/show.h"
#include "tessera/config/run_config.h"

namespace tessera::cli {
namespace {

namespace accelerate = config::accelerate;

struct ConfigArguments {
  std::string file, out;
  bool strict = false, json = false;
};

void check_startable(const accelerate::Translation& translation) {
  if (!translation.launch.problem.empty()) throw UserError(translation.launch.problem);
}

void show(const ConfigArguments& arguments) {
  if (accelerate::kind_of(arguments.file) == accelerate::FileKind::job) {
    if (arguments.json) user_error("config show: --json is of Accelerate's and DeepSpeed's files");
    fmt::print("{}", config::print_config(config::load_run_config(arguments.file, {})));
    return;
  }
  const auto translation = accelerate::translate_file(arguments.file);
  fmt::print("{}", arguments.json ? accelerate::show_json(translation).dump(2) + "\n"
                                  : accelerate::show_text(translation));
  check_startable(translation);
  if (arguments.strict) accelerate::check_ledger(translation.ledger, /*strict=*/true);
}

void migrate(const ConfigArguments& arguments) {
  if (accelerate::kind_of(arguments.file) == accelerate::FileKind::job) {
    user_error("{}: is a job file already", arguments.file);
  }
  const auto translation = accelerate::translate_file(arguments.file);
  check_startable(translation);
  accelerate::check_ledger(translation.ledger, /*strict=*/false);
  const auto text = fmt::format("# From {}. Start: {}\n{}", arguments.file,
                                accelerate::launch_line(translation.launch),
                                accelerate::native_yaml(translation));
  if (arguments.out.empty()) {
    fmt::print("{}", text);
    return;
  }
  if (std::filesystem::exists(arguments.out)) {
    user_error("{}: exists already; remove it or name another file", arguments.out);
  }
  check_output(arguments.out, "name another file");
  write_output(arguments.out, text);
  fmt::print("wrote {}\n", arguments.out);
}

void add_show(CLI::App& config, int& exit_code) {
  auto arguments = std::make_shared<ConfigArguments>();
  auto* command = config.add_subcommand("show", "What becomes here of each key of a configuration");
  command
      ->add_option("FILE", arguments->file,
                   "Accelerate's YAML or JSON, DeepSpeed's JSON, a job file")
      ->required();
  command->add_flag("--strict", arguments->strict, "Fail if a key has no effect here");
  command->add_flag("--json", arguments->json, "For programs");
  command->footer(
      "Example:\n  tessera config show ~/.cache/huggingface/accelerate/default_config.yaml");
  command->callback([arguments, &exit_code] {
    show(*arguments);
    exit_code = 0;
  });
}

void add_migrate(CLI::App& config, int& exit_code) {
  auto arguments = std::make_shared<ConfigArguments>();
  auto* command =
      config.add_subcommand("migrate", "Write a configuration as sections of a job file");
  command->add_option("FILE", arguments->file, "Accelerate's YAML or JSON, DeepSpeed's JSON")
      ->required();
  command->add_option("-o,--out", arguments->out, "File to write; the screen unless given");
  command->footer("Example:\n  tessera config migrate fsdp.yaml -o parallel.yaml");
  command->callback([arguments, &exit_code] {
    migrate(*arguments);
    exit_code = 0;
  });
}

}  // namespace

void add_config(CLI::App& app, int& exit_code) {
  auto* config = app.add_subcommand(
                        "config", "Ask for a configuration and write it; show, convert, update one")
                     ->require_subcommand(0, 1);
  auto* docs = config->add_subcommand("docs", "Print docs/config.md");
  docs->footer("Example:\n  tessera config docs > docs/config.md");
  docs->callback([&exit_code] {
    fmt::print("{}", config::config_markdown());
    exit_code = 0;
  });
  add_show(*config, exit_code);
  add_migrate(*config, exit_code);
  add_config_questions(*config, exit_code);
}

}  // namespace tessera::cli
