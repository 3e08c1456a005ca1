// The main of a program whose ranks train: an error that nobody caught is one line and an exit code.
#pragma once

#include <functional>
#include <string>

namespace tessera {

struct ProgramOptions {
  /// What is said of the user's mistakes in words that the user knows (keys of a job file, options).
  std::function<std::string(const std::string&)> in_users_words;
};

/// Calls `program` and returns its exit code, or that of the error with which it ended, told in one line on
/// stderr: 2 for the user's mistake (UserError, c10::ValueError), 1 for a lost peer and anything else. With
/// TESSERA_TRACE in the environment LibTorch's errors say where they come from. What LibTorch logs on its own is
/// silent unless TORCH_CPP_LOG_LEVEL asks for it. A mapped file that was cut is named, instead of SIGBUS.
///
///     int main() { return tessera::run_program(program); }
int run_program(const std::function<int()>& program, const ProgramOptions& options = {});

}  // namespace tessera
