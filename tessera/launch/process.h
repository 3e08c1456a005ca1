// Child processes: starting one, and finding all that descend from us.
#pragma once

#include <signal.h>
#include <sys/types.h>

#include <set>
#include <string>
#include <vector>

#include "tessera/base/file_descriptor.h"

namespace tessera::launch {

struct SpawnOptions {
  std::string program;                   ///< path, as found by find_program
  std::vector<std::string> arguments;    ///< argv, with argv[0]
  std::vector<std::string> environment;  ///< NAME=value
  int stdin_fd = 0, stdout_fd = 1, stderr_fd = 2;
  std::vector<int> inherited_fds;  ///< kept open under the same number
  sigset_t signal_mask{};          ///< the child's
};

/// The file that `name` means: itself if it has a slash, else the first of PATH.
/// Throws UserError if there is none or it cannot be executed.
std::string find_program(const std::string& name);

/// Starts a process in a process group of its own that is killed (SIGKILL) when we die. Returns
/// once its exec succeeded. Throws UserError if exec refuses the program, SystemError if the
/// machine has no process left.
pid_t spawn(const SpawnOptions& options);

struct Pipe {
  FileDescriptor read, write;
};
Pipe make_pipe();  ///< both ends closed on exec

struct ProcessEntry {
  pid_t pid, parent, group;
  char state;  ///< as in /proc/PID/stat: R, S, D, Z, ..
};

/// All processes that /proc shows.
std::vector<ProcessEntry> list_processes();

/// The processes that descend from this one, except the subtrees of `excluded`; zombies left out.
std::vector<ProcessEntry> descendants(const std::set<pid_t>& excluded);

}  // namespace tessera::launch
