// The command `tessera`. It does not link LibTorch, so that every subcommand but the ranks
// themselves starts at once.
#include <CLI/CLI.hpp>
#include <cstdio>

#include "tessera/base/error.h"
#include "tessera/base/nearest.h"
#include "tessera/cli/commands.h"

namespace {

/// What CLI11 found wrong; it does not name a word that is no command.
std::string describe(const CLI::App& app, const CLI::ParseError& error) {
  const auto unknown = app.remaining();
  const auto parsed = app.get_subcommands();
  if (!parsed.empty() && parsed.front()->get_require_subcommand_min() > 0)
    return describe(*parsed.front(), error);
  if (unknown.empty() || !parsed.empty()) return error.what();
  std::vector<std::string> commands;
  for (const auto* command : app.get_subcommands(nullptr)) commands.push_back(command->get_name());
  return fmt::format("unknown command or option '{}'{}", unknown.front(),
                     tessera::did_you_mean(unknown.front(), commands));
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Scale model training from one device to many, without Python.", "tessera");
  app.require_subcommand(1);
  app.set_version_flag("--version", TESSERA_VERSION);
  int exit_code = 0;
  tessera::cli::add_train(app, exit_code);
  tessera::cli::add_launch(app, exit_code);
  tessera::cli::add_tokenize(app, exit_code);
  tessera::cli::add_checkpoint(app, exit_code);
  tessera::cli::add_config(app, exit_code);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp& help) {
    return app.exit(help);
  } catch (const CLI::CallForVersion& version) {
    return app.exit(version);
  } catch (const CLI::ParseError& error) {
    std::fprintf(stderr, "tessera: %s; see tessera --help\n", describe(app, error).c_str());
    return tessera::kUserErrorExit;
  } catch (const tessera::UserError& error) {
    std::fprintf(stderr, "tessera: %s\n", error.what());
    return tessera::kUserErrorExit;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "tessera: %s\n", error.what());
    return tessera::kFailureExit;
  }
  return exit_code;
}
