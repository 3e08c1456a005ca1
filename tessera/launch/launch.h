// Starts the ranks of a job on this machine, watches them and ends them together.
#pragma once

#include <chrono>
#include <map>
#include <string>
#include <vector>

namespace tessera::launch {

enum class OutputMode {
  prefixed,  ///< every line of every rank, as "[rank]: line"
  plain,  ///< rank 0 only, unchanged; what the others print to stderr is shown only as the cause of
          ///< a failure
};

struct LaunchOptions {
  std::vector<std::string>
      command;            ///< program (a path, or a name looked up in PATH) and its arguments
  int num_processes = 1;  ///< on this machine
  int num_nodes = 1;      ///< machines; each runs its own launcher with the same num_processes
  int node_rank = 0;      ///< which of them this is
  std::string master_addr = "127.0.0.1";
  int master_port = 0;              ///< 0: a free one; one-machine runs only
  bool other_port_if_busy = false;  ///< on one machine a taken master_port gives way to a free one,
                                    ///< with a line on stderr
  int max_restarts = 0;             ///< after a failure all ranks are stopped and started again
  OutputMode output = OutputMode::prefixed;
  std::string log_dir;  ///< when set, a rank's output also goes to log_dir/rank_N.log
  std::map<std::string, std::string> environment;  ///< added to this process's own
  std::string role = "default";                    ///< ROLE_NAME of the ranks
  /// Binds the socket of the rendezvous here (base/network.h says to what) and hands it, listening,
  /// to rank 0 as TESSERA_LISTEN_FD, so that nobody can take the port meanwhile. Only for programs
  /// that use it (rank_environment.h).
  bool pass_listen_socket = false;
  std::chrono::milliseconds grace{2000};          ///< from SIGTERM to SIGKILL once a rank failed
  std::chrono::milliseconds signal_grace{10000};  ///< the same after a signal of the user's own
  /// SIGINT is passed on, no more: ranks stop what they do by it, and one that ends by it or with
  /// 128 + SIGINT ends all.
  bool ranks_take_interrupts = false;
};

/// Runs `command` as num_processes ranks with the environment of torchrun (RANK, LOCAL_RANK,
/// WORLD_SIZE, .., and OMP_NUM_THREADS=1 when unset and there are several) and returns when the
/// last has ended: 0; kPreemptedExit if ranks ended with it and none failed; the exit code of the
/// rank that failed first; 128 + signal if it died by one or if the user sent one to us.
///
/// - When a rank fails, the others get SIGTERM, and SIGKILL after `grace`. The one that failed
///   first (of several within a moment: rather one killed by a signal, rather not one that only
///   lost its peer) is named on stderr with its signal or exit code, its last step (progress.h) and
///   its last lines; an out-of-memory kill is called that. If all that failed only waited in vain,
///   the rank that was stopped (SIGSTOP, a debugger) or did not come is named instead, and the exit
///   code is 1.
/// - SIGINT, SIGTERM, SIGHUP and SIGQUIT are passed on to the ranks and all their descendants; a
///   second one kills them. SIGUSR1 is passed on, no more.
/// - No process is left behind: descendants that outlive their rank are ended, also if this process
///   is killed by -9. Those that both left their rank's process group and hide their environment
///   survive only the latter.
/// - In plain mode without log_dir rank 0 writes to our own stdout (a terminal stays one). In plain
///   mode a rank that ends with exit code 2 (user's error) is reported by its own words alone.
///
/// Reaps every child of the calling process while it runs; call it before the process starts
/// threads. Throws UserError, before anything is started, if the program, a number, the port or
/// log_dir cannot be used.
int launch(const LaunchOptions& options);

}  // namespace tessera::launch
