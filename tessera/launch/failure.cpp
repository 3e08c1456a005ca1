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

}  // namespace

const RankEnd* first_cause(const AttemptEnd& attempt) {
  const auto cause =
      std::min_element(attempt.ranks.begin(), attempt.ranks.end(),
                       [](const auto& a, const auto& b) { return blame(a) < blame(b); });
  return cause == attempt.ranks.end() || !cause->failed() ? nullptr : &*cause;
}

std::string describe(const RankEnd& rank) {
  std::string text = fmt::format("rank {} (pid {}) ", rank.rank, rank.pid);
  if (WIFSIGNALED(rank.wait_status)) {
    const int signal = WTERMSIG(rank.wait_status);
    const char* name = ::sigabbrev_np(signal);
    text += name != nullptr ? fmt::format("was killed by SIG{} ({})", name, signal)
                            : fmt::format("was killed by signal {}", signal);
  } else {
    text += fmt::format("exited with code {}", WEXITSTATUS(rank.wait_status));
  }
  if (rank.step) text += fmt::format(" at step {}", *rank.step);
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
  const auto rank_0 = std::find_if(attempt.ranks.begin(), attempt.ranks.end(),
                                   [](const RankEnd& rank) { return rank.rank == 0; });
  const bool colours = ::isatty(2) == 1 && std::getenv("NO_COLOR") == nullptr && !users_error;
  std::string text;
  if (!users_error) text = fmt::format("tessera launch: {}\n", describe(cause));
  for (const auto& line : cause.last_lines) {
    const bool shown = plain && rank_0 != attempt.ranks.end() &&
                       std::find(rank_0->last_lines.begin(), rank_0->last_lines.end(), line) !=
                           rank_0->last_lines.end();
    if (shown) continue;
    text += users_error ? line + "\n"
                        : fmt::format("  {}{}{}\n", colours ? "\x1b[2m" : "", line,
                                      colours ? "\x1b[0m" : "");
  }
  write_all(2, text);
}

}  // namespace tessera::launch
