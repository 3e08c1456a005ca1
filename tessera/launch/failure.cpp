#include "tessera/launch/failure.h"

#include <string.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string_view>
#include <tuple>

#include "tessera/base/error.h"

namespace tessera::launch {
namespace {

/// The words of Gloo, NCCL, c10d and the kernel, and ours, when the other side of a connection is
/// gone.
bool only_lost_its_peer(const RankEnd& rank) {
  constexpr std::array<std::string_view, 9> kWords{"Connection reset by peer",
                                                   "Connection closed by peer",
                                                   "Broken pipe",
                                                   "Connection refused",
                                                   " failed after ",
                                                   "DistError",
                                                   "remote process exited",
                                                   "recvValue failed",
                                                   "DistNetworkError"};
  return std::any_of(rank.last_lines.begin(), rank.last_lines.end(), [&](const std::string& line) {
    return std::any_of(kWords.begin(), kWords.end(),
                       [&](std::string_view word) { return line.find(word) != std::string::npos; });
  });
}

/// Smaller is likelier the cause.
auto blame(const RankEnd& rank) {
  return std::tuple(!rank.failed(), rank.stopped_by_us, only_lost_its_peer(rank),
                    !WIFSIGNALED(rank.wait_status), rank.time);
}

std::string signal_name(int signal) {
  const char* name = ::sigabbrev_np(signal);
  return name != nullptr ? fmt::format("SIG{} ({})", name, signal)
                         : fmt::format("signal {}", signal);
}

const RankEnd* rank_0(const AttemptEnd& attempt) {
  const auto found = std::find_if(attempt.ranks.begin(), attempt.ranks.end(),
                                  [](const RankEnd& rank) { return rank.rank == 0; });
  return found == attempt.ranks.end() ? nullptr : &*found;
}

/// A rank 0 that a signal ended may have left its progress line open on the terminal.
std::string line_end(const AttemptEnd& attempt, OutputMode output) {
  const auto* rank = rank_0(attempt);
  const bool open = output == OutputMode::plain && rank != nullptr &&
                    WIFSIGNALED(rank->wait_status) && ::isatty(1) == 1;
  return open ? "\n" : "";
}

}  // namespace

bool RankEnd::preempted() const {
  return WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == kPreemptedExit;
}

const RankEnd* first_cause(const AttemptEnd& attempt) {
  const auto cause =
      std::min_element(attempt.ranks.begin(), attempt.ranks.end(),
                       [](const auto& a, const auto& b) { return blame(a) < blame(b); });
  return cause == attempt.ranks.end() || !cause->failed() ? nullptr : &*cause;
}

std::string describe(const RankEnd& rank) {
  std::string text = fmt::format("rank {} (pid {}) ", rank.rank, rank.pid);
  if (WIFSIGNALED(rank.wait_status)) {
    text += "was killed by " + signal_name(WTERMSIG(rank.wait_status));
  } else {
    text += fmt::format("exited with code {}", WEXITSTATUS(rank.wait_status));
  }
  if (rank.step) text += fmt::format(" at step {}", *rank.step);
  if (!rank.doing.empty()) text += ", " + rank.doing;
  if (rank.out_of_memory) text += ": out of memory";
  return text;
}

int exit_code(const RankEnd& rank) {
  return WIFSIGNALED(rank.wait_status) ? 128 + WTERMSIG(rank.wait_status)
                                       : WEXITSTATUS(rank.wait_status);
}

void report_failure(const RankEnd& cause, const AttemptEnd& attempt, OutputMode output) {
  const bool plain = output == OutputMode::plain;
  const bool users_error = plain && exit_code(cause) == kUserErrorExit;
  const auto* first = rank_0(attempt);
  const bool colours = ::isatty(2) == 1 && std::getenv("NO_COLOR") == nullptr && !users_error;
  std::string text = line_end(attempt, output);
  if (!users_error) text += fmt::format("tessera launch: {}\n", describe(cause));
  for (const auto& line : cause.last_lines) {
    const bool shown = plain && first != nullptr &&
                       std::find(first->last_lines.begin(), first->last_lines.end(), line) !=
                           first->last_lines.end();
    if (shown) continue;
    text += users_error ? line + "\n"
                        : fmt::format("  {}{}{}\n", colours ? "\x1b[2m" : "", line,
                                      colours ? "\x1b[0m" : "");
  }
  write_all(2, text);
}

void report_signal(const AttemptEnd& attempt, OutputMode output) {
  const auto* rank = attempt.ranks.empty() ? nullptr : &attempt.ranks.front();
  write_all(
      2, fmt::format("{}tessera launch: stopped by {}{}\n", line_end(attempt, output),
                     signal_name(attempt.signal),
                     rank != nullptr && rank->step ? fmt::format(" at step {}", *rank->step) : ""));
}

}  // namespace tessera::launch
