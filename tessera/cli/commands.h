// One function for each subcommand: it adds the subcommand to `app`, and when that ran, `exit_code`
// holds its result.
#pragma once

#include <CLI/CLI.hpp>

namespace tessera::cli {

void add_chat(CLI::App& app, int& exit_code);
void add_checkpoint(CLI::App& app, int& exit_code);
void add_completion(CLI::App& app, int& exit_code);
void add_config(CLI::App& app, int& exit_code);
void add_config_questions(CLI::App& config, int& exit_code);  ///< of `tessera config` itself
void add_data(CLI::App& app, int& exit_code);
void add_env(CLI::App& app, int& exit_code);
void add_estimate_memory(CLI::App& app, int& exit_code);
void add_evaluate(CLI::App& app, int& exit_code);
void add_export(CLI::App& app, int& exit_code);
void add_finetune(CLI::App& app, int& exit_code);
void add_generate(CLI::App& app, int& exit_code);
void add_launch(CLI::App& app, int& exit_code);
void add_man(CLI::App& app, int& exit_code);
void add_merge_adapter(CLI::App& app, int& exit_code);
void add_merge_weights(CLI::App& app, int& exit_code);
void add_offload(CLI::App& app, int& exit_code);
void add_precision(CLI::App& app, int& exit_code);
void add_push(CLI::App& app, int& exit_code);
void add_schedule(CLI::App& app, int& exit_code);
void add_test(CLI::App& app, int& exit_code);
void add_to_fsdp2(CLI::App& app, int& exit_code);
void add_tokenize(CLI::App& app, int& exit_code);
void add_train(CLI::App& app, int& exit_code);

}  // namespace tessera::cli
