// Runs the built `tessera` as a user would.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <map>
#include <string>
#include <vector>

namespace tessera {

struct ProgramOptions {
  std::map<std::string, std::string> environment;  ///< beside PATH and the like: no rank's
  std::string input;                               ///< on standard input
  std::chrono::seconds deadline{60};
  std::string killed_at;        ///< a path: all are killed (SIGKILL) as soon as it is there
  std::string redirection;      ///< as a shell's, of numbers that are closed: "<&-"
  bool without_rights = false;  ///< as the user kWithoutRights, if this process is root's
};

/// The user and group "nobody".
inline constexpr unsigned kWithoutRights = 65534;

/// Why no program can be run as that user: not root, no setpriv, a build that it may not read; "":
/// it can.
std::string why_not_without_rights();

struct ProgramEnd {
  int exit_code = -1;  ///< 128 + signal if it was killed
  bool in_time = true;
  std::string out, error;
};

/// `tessera ARGUMENTS..` in the current folder. Killed at the deadline.
ProgramEnd run_tessera(const std::vector<std::string>& arguments,
                       const ProgramOptions& options = {});

/// `tessera ARGUMENTS..` at a terminal, of which `terminal` is the program's side: its process, and
/// group. Killed when we die; the caller waits for its end.
pid_t start_tessera(const std::vector<std::string>& arguments, int terminal);

/// Expects that `end` is a refusal: exit code 2, nothing on standard output, one line with
/// `message` on standard error.
void expect_mistake(const ProgramEnd& end, const std::string& message);

}  // namespace tessera
