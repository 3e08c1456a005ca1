// Errors of the library in the words of commands.
#pragma once

#include <string>

namespace tessera::cli {

/// `message` with the library's options called as `tessera data show`, `evaluate` and `offload tune` call them: "set skip_bad_lines" becomes
/// "set --skip-bad-lines".
std::string with_command_options(const std::string& message);

}  // namespace tessera::cli
