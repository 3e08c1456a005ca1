// Accelerate's part of `tessera launch`: its options and its configuration file, and what both ask
// of the launcher.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <vector>

#include "tessera/config/accelerate/ledger.h"
#include "tessera/config/accelerate/settings.h"
#include "tessera/launch/launch.h"

namespace tessera::cli {

/// What a command line says in Accelerate's words.
struct AccelerateRequest {
  std::string config_file;  ///< "": the default one, where it exists and --cpu is not given
  config::accelerate::Settings settings;  ///< each takes the place of the file's
  /// What the launcher's own options say, by Accelerate's key: counts only beside a file or others.
  std::vector<config::accelerate::Setting> own;
  std::optional<int> processes_per_machine;  ///< -n, likewise
  std::optional<int> threads_per_process;
  std::vector<config::accelerate::LedgerEntry> idle;  ///< options that have no effect here
  bool use_parallelism_config = false, strict = false, quiet = false;
};

/// Settings of which none is refused, and what they come to.
struct AccelerateRun {
  config::accelerate::Settings settings;
  config::accelerate::Translation translation;
};

/// The settings of `file` ("": none) with the request's in their place. Tells on stderr, as
/// `command` and unless quiet, what has no effect here. UserError for what is refused, contradicts
/// itself or needs a device that this machine lacks.
AccelerateRun accelerate_run(const AccelerateRequest& request, const std::string& file,
                             const char* command);

/// Adds every option of `accelerate launch` that `command` has not yet, spelt with - and with _.
/// They fill `request`, which must live as long as `command`. Those of one engine are shown by
/// --help_all only.
void add_accelerate_options(CLI::App& command, AccelerateRequest& request);

/// Sets processes, machines, rendezvous and environment of `launch` as the request and its file
/// say, and tells on stderr (unless quiet) what has no effect here. Returns false, and leaves
/// processes, machines and rendezvous alone, where there is no file and no setting. UserError for
/// what is refused, contradicts itself or needs a device that this machine lacks.
bool apply(const AccelerateRequest& request, launch::LaunchOptions& launch);

}  // namespace tessera::cli
