// tessera config docs: the page of every key, made from the field list.
#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "tessera/cli/commands.h"
#include "tessera/config/run_config.h"

namespace tessera::cli {

void add_config(CLI::App& app, int& exit_code) {
  auto* config = app.add_subcommand("config", "What a job file may say")->require_subcommand(1);
  config->add_subcommand("docs", "Print docs/config.md")->callback([&exit_code] {
    fmt::print("{}", config::config_markdown());
    exit_code = 0;
  });
}

}  // namespace tessera::cli
