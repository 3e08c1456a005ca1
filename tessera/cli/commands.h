// One function for each subcommand: it adds the subcommand to `app`, and when that ran, `exit_code`
// holds its result.
#pragma once

#include <CLI/CLI.hpp>

namespace tessera::cli {

void add_checkpoint(CLI::App& app, int& exit_code);
void add_config(CLI::App& app, int& exit_code);
void add_launch(CLI::App& app, int& exit_code);
void add_tokenize(CLI::App& app, int& exit_code);
void add_train(CLI::App& app, int& exit_code);

}  // namespace tessera::cli
