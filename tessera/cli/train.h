// Training as `tessera train` starts it, for commands that make a job.
#pragma once

#include <string>
#include <vector>

#include "tessera/config/run_config.h"

namespace tessera::cli {

/// Runs a job file with what takes the place of its values, and returns the exit code: as many ranks as it asks for, or this
/// process goes on as one of those that were started already. UserError as `tessera train`.
int train_job(const std::string& job, const std::vector<config::Override>& overrides);

/// "--section.key=value" of a command line. UserError: another option.
std::vector<config::Override> parse_overrides(const std::vector<std::string>& arguments,
                                              const char* command);

}  // namespace tessera::cli
