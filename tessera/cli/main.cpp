// The command `tessera`. It does not link LibTorch, so that every subcommand but the ranks
// themselves starts at once.
#include <CLI/CLI.hpp>
#include <cstdio>

#include "tessera/base/error.h"
#include "tessera/cli/commands.h"

int main(int argc, char** argv) {
  CLI::App app("Scale model training from one device to many, without Python.", "tessera");
  app.require_subcommand(1);
  app.set_version_flag("--version", TESSERA_VERSION);
  int exit_code = 0;
  tessera::cli::add_train(app, exit_code);
  tessera::cli::add_launch(app, exit_code);
  tessera::cli::add_tokenize(app, exit_code);
  tessera::cli::add_config(app, exit_code);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp& help) {
    return app.exit(help);
  } catch (const CLI::CallForVersion& version) {
    return app.exit(version);
  } catch (const CLI::ParseError& error) {
    std::fprintf(stderr, "tessera: %s; see tessera --help\n", error.what());
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
