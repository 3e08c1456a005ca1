// The command `tessera`. It does not link LibTorch, so that every subcommand but the ranks
// themselves starts at once.
#include <CLI/CLI.hpp>
#include <cstdio>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/mapped_files.h"
#include "tessera/base/nearest.h"
#include "tessera/base/path_error.h"
#include "tessera/base/text.h"
#include "tessera/cli/commands.h"
#include "tessera/version.h"

namespace {

/// What CLI11 found wrong; it does not name a word that is no command or option.
std::string describe(const CLI::App& app, const CLI::ParseError& error) {
  const auto unknown = app.remaining();
  const auto parsed = app.get_subcommands();
  const bool is_word = error.get_exit_code() == static_cast<int>(CLI::ExitCodes::ExtrasError);
  if (!parsed.empty() && (is_word || !parsed.front()->get_subcommands(nullptr).empty()))
    return describe(*parsed.front(), error);
  if (unknown.empty() || !parsed.empty()) return error.what();
  std::vector<std::string> known;
  for (const auto* command : app.get_subcommands(nullptr)) known.push_back(command->get_name());
  for (const auto* option : app.get_options()) {
    for (const auto& name : option->get_lnames()) known.push_back("--" + name);
  }
  return fmt::format("unknown command or option '{}'{}", unknown.front(),
                     tessera::did_you_mean(unknown.front(), known));
}

}  // namespace

int main(int argc, char** argv) {
  tessera::open_standard_files();
  CLI::App app("Scale model training from one device to many, without Python.", "tessera");
  app.require_subcommand(1);
  app.set_version_flag("--version", TESSERA_VERSION);
  int exit_code = 0;
  tessera::cli::add_train(app, exit_code);
  tessera::cli::add_launch(app, exit_code);
  tessera::cli::add_test(app, exit_code);
  tessera::cli::add_tokenize(app, exit_code);
  tessera::cli::add_data(app, exit_code);
  tessera::cli::add_checkpoint(app, exit_code);
  tessera::cli::add_generate(app, exit_code);
  tessera::cli::add_chat(app, exit_code);
  tessera::cli::add_evaluate(app, exit_code);
  tessera::cli::add_export(app, exit_code);
  tessera::cli::add_finetune(app, exit_code);
  tessera::cli::add_push(app, exit_code);
  tessera::cli::add_merge_adapter(app, exit_code);
  tessera::cli::add_merge_weights(app, exit_code);
  tessera::cli::add_to_fsdp2(app, exit_code);
  tessera::cli::add_config(app, exit_code);
  tessera::cli::add_estimate_memory(app, exit_code);
  tessera::cli::add_precision(app, exit_code);
  tessera::cli::add_schedule(app, exit_code);
  tessera::cli::add_offload(app, exit_code);
  tessera::cli::add_env(app, exit_code);
  tessera::cli::add_completion(app, exit_code);
  tessera::cli::add_man(app, exit_code);
  // Last: commands take the footer that is there when they are added.
  app.footer(
      "tessera COMMAND --help says more.\nExample:\n  tessera train recipes/tiny_llama.yaml "
      "--data.train=FOLDER");
  try {
    tessera::watch_mapped_files(tessera::WhenCut::end);
    tessera::with_path_errors([&] { app.parse(argc, argv); });
  } catch (const CLI::CallForHelp& help) {
    return app.exit(help);
  } catch (const CLI::CallForVersion& version) {
    return app.exit(version);
  } catch (const CLI::ParseError& error) {
    std::fprintf(stderr, "tessera: %s; see tessera --help\n",
                 tessera::printable(describe(app, error)).c_str());
    return tessera::kUserErrorExit;
  } catch (const tessera::UserError& error) {
    std::fprintf(stderr, "tessera: %s\n", tessera::printable(error.what()).c_str());
    return tessera::kUserErrorExit;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "tessera: %s\n", tessera::printable(error.what()).c_str());
    return tessera::kFailureExit;
  }
  return exit_code;
}
