// Watches the ranks of one attempt from their start to the end of the last.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tessera/launch/keeper.h"
#include "tessera/launch/launch.h"
#include "tessera/launch/out_of_memory.h"
#include "tessera/launch/process.h"
#include "tessera/launch/progress.h"
#include "tessera/launch/rank_output.h"
#include "tessera/launch/signal_queue.h"

namespace tessera::launch {

using Clock = std::chrono::steady_clock;

/// How one rank ended.
struct RankEnd {
  int rank = 0;  ///< global
  pid_t pid = 0;
  int wait_status = 0;  ///< as waitpid gave it
  Clock::time_point time;
  bool stopped_by_us = false;  ///< it ended after we had told all ranks to
  bool was_halted = false;     ///< by SIGSTOP or a debugger when another rank failed; we killed it
  bool out_of_memory = false;
  std::optional<int64_t> step;         ///< the last it told (progress.h)
  std::string doing;                   ///< and what in it
  std::deque<std::string> last_lines;  ///< of its stderr
  std::string missed;  ///< what a rank that waited for it in vain said; empty: none did
  bool did_not_come() const { return was_halted || !missed.empty(); }
  bool preempted() const;  ///< ended as a rank does that has saved at a scheduler's wish
  bool failed() const { return wait_status != 0 && !preempted(); }
};

struct AttemptEnd {
  std::vector<RankEnd> ranks;  ///< in the order of their end
  int signal = 0;              ///< the user's own that ended the attempt; 0: none
};

/// What lives as long as the launch and serves every attempt.
struct LaunchState {
  SignalQueue signals;
  std::set<pid_t> foreign_children;  ///< not ours to end: there before us, and the keeper
  Keeper keeper;
  ProgressBoard progress;
};

/// What differs between ranks and attempts.
struct RankStart {
  int rank = 0;
  std::vector<std::string> environment;  ///< NAME=value
  std::vector<int> inherited_fds;
  FileDescriptor
      listening;  ///< passed on, then closed here: once the rank is gone, peers must be refused
  int log_fd = -1;
};

/// Starts `ranks` (local rank = position) and returns when no process of theirs is left.
/// `program`: the path of options.command[0]. Throws UserError if exec refuses it; nothing runs
/// then.
AttemptEnd run_attempt(const LaunchOptions& options, const std::string& program,
                       std::vector<RankStart> ranks, LaunchState& state);

}  // namespace tessera::launch
