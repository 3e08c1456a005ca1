// The settings of Accelerate's that a command line and its configuration file come to.
#pragma once

#include <string>

#include "tessera/cli/launch_options.h"

namespace tessera::cli {

/// UserError: both were given.
[[noreturn]] void contradict(const config::accelerate::Setting& one,
                             const config::accelerate::Setting& other);

/// The setting with its value as settings hold it. UserError: a value that its key does not take.
config::accelerate::Setting checked(config::accelerate::Setting setting);

/// The request's --cpu; nullptr if it is not given, or is --cpu=false.
const config::accelerate::Setting* asked_cpu(const AccelerateRequest& request);

/// The file that the request names, else the default one, where it exists and --cpu is not given;
/// "" if there is none.
std::string configuration_file(const AccelerateRequest& request);

/// The file's settings ("": none) with the request's in their place. UserError: contradictions.
config::accelerate::Settings settings_of(const AccelerateRequest& request, const std::string& file);

}  // namespace tessera::cli
