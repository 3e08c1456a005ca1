// tessera to-fsdp2: an Accelerate configuration of FSDP version 1 as one of version 2.
#include "tessera/config/accelerate/to_fsdp2.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>

#include "tessera/base/error.h"
#include "tessera/cli/commands.h"
#include "tessera/cli/output_file.h"

namespace tessera::cli {
namespace {

struct Fsdp2Arguments {
  std::string input, output;
  bool overwrite = false;
};

void run_to_fsdp2(Fsdp2Arguments arguments) {
  if (arguments.output.empty() && !arguments.overwrite) {
    user_error("give --output_file, or --overwrite to replace {}", arguments.input);
  }
  if (arguments.output.empty()) arguments.output = arguments.input;
  if (!arguments.overwrite && std::filesystem::exists(arguments.output)) {
    user_error("{}: exists; choose another --output_file, or add --overwrite", arguments.output);
  }
  const auto result =
      config::accelerate::to_fsdp2(config::accelerate::read_settings(arguments.input));
  check_output(arguments.output, "choose another --output_file");
  write_output(arguments.output, config::accelerate::to_yaml(result.settings));
  for (const auto& change : result.changes) fmt::print("{}\n", change);
  fmt::print("wrote {}\n", arguments.output);
}

}  // namespace

void add_to_fsdp2(CLI::App& app, int& exit_code) {
  auto arguments = std::make_shared<Fsdp2Arguments>();
  auto* command = app.add_subcommand(
      "to-fsdp2", "Convert an Accelerate configuration from FSDP version 1 to version 2");
  command->footer("Example:\n  tessera to-fsdp2 --config_file fsdp.yaml --output_file fsdp2.yaml");
  command->add_option("--config_file,--config-file", arguments->input, "Configuration to read")
      ->required();
  command->add_option("--output_file,--output-file", arguments->output,
                      "Configuration to write; the one read with --overwrite alone");
  command->add_flag("--overwrite", arguments->overwrite, "Replace a file that exists");
  command->callback([arguments, &exit_code] {
    run_to_fsdp2(*arguments);
    exit_code = 0;
  });
}

}  // namespace tessera::cli
