// Processes that start where this one did: LibTorch's start is made once for a program of tests.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace tessera {

/// Note [Rank server]. A rank of a test is a process of the same program, and LibTorch takes half a
/// second of a core to register its operators and to forget them again: more than most ranks' work.
/// So main() forks a server before anything runs, with one thread and all libraries loaded;
/// whenever a process is to be started, the server forks itself, and the copy goes on in main()
/// with arguments, an environment and files of its own. It is a child of the program
/// (CLONE_PARENT), which waits for it as for any other, and it ends with the program.
struct RankProcess {
  std::vector<std::string> arguments;    ///< argv
  std::vector<std::string> environment;  ///< NAME=VALUE
  int output_fd = -1;                    ///< stdout and stderr
  int listen_fd = -1;                    ///< -1, or what it gets too; kListenFd tells its number
};

/// The environment variable with the number of the process's listen_fd.
inline constexpr const char* kListenFd = "TESSERA_TEST_LISTEN_FD";

/// Its process id. A system_error() where there is no server: main() must be that of main.cpp.
pid_t start_rank_process(const RankProcess& process);

/// What main() does: returns once all tests ran, here and in every started process.
int run_tests(int argc, char** argv);

}  // namespace tessera
