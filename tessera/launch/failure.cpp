#include "tessera/launch/failure.h"

#include <fmt/ranges.h>
#include <string.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <map>
#include <set>
#include <sstream>
#include <string_view>
#include <tuple>

#include "tessera/base/error.h"

namespace tessera::launch {
namespace {

constexpr std::string_view kDidNotCome = " did not come";  // comm::did_not_come

/// The ranks of which `line` says that they did not come: "rank 3 did not come", "ranks 1, 3 ..".
std::set<int> missing_ranks(const std::string& line) {
  const auto end = line.find(kDidNotCome);
  if (end == std::string::npos) return {};
  auto begin = line.find_last_not_of("0123456789, ", end);
  if (begin == std::string::npos) return {};
  std::string numbers = line.substr(begin + 1, end - begin - 1);
  std::ranges::replace(numbers, ',', ' ');
  std::istringstream words(numbers);
  std::set<int> ranks;
  for (int rank = 0; words >> rank;) ranks.insert(rank);
  return ranks;
}

/// The words of Gloo, NCCL, c10d and the kernel, and ours, when the other side of a connection is
/// gone or does not answer.
bool only_lost_its_peer(const RankEnd& rank) {
  constexpr std::array<std::string_view, 14> kWords{"Connection reset by peer",
                                                    "Connection closed by peer",
                                                    "Broken pipe",
                                                    "Connection refused",
                                                    " failed after ",
                                                    "DistError",
                                                    "remote process exited",
                                                    "recvValue failed",
                                                    "Failed to recv,",
                                                    "DistNetworkError",
                                                    kDidNotCome,
                                                    "Timed out waiting",
                                                    "Application timeout",
                                                    "collective operation timeout"};
  return std::any_of(rank.last_lines.begin(), rank.last_lines.end(), [&](const std::string& line) {
    return std::any_of(kWords.begin(), kWords.end(),
                       [&](std::string_view word) { return line.find(word) != std::string::npos; });
  });
}

/// Smaller is likelier the cause.
auto blame(const RankEnd& rank) {
  enum { failed_by_itself, was_halted, did_not_come, lost_its_peer, was_stopped, did_not_fail };
  const auto how = [&] {
    if (rank.was_halted) return was_halted;
    if (rank.did_not_come()) return did_not_come;
    if (!rank.failed()) return did_not_fail;
    if (rank.stopped_by_us) return was_stopped;
    return only_lost_its_peer(rank) ? lost_its_peer : failed_by_itself;
  }();
  return std::tuple(how, !WIFSIGNALED(rank.wait_status), rank.time);
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

/// The ranks of other machines that the one that failed says it waited for in vain: "rank 1 of
/// another machine"; "" if there are none.
std::string missed_elsewhere(const RankEnd& cause, const AttemptEnd& attempt) {
  std::set<int> missed;
  for (const auto& line : cause.last_lines) missed.merge(missing_ranks(line));
  for (const auto& rank : attempt.ranks) missed.erase(rank.rank);
  if (missed.empty()) return "";
  return fmt::format("rank{} {} of another machine", missed.size() == 1 ? "" : "s",
                     fmt::join(missed, ", "));
}

}  // namespace

bool RankEnd::preempted() const {
  return WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == kPreemptedExit;
}

void note_missed(AttemptEnd& attempt) {
  std::map<int, std::string> said;  // by the rank that is missed
  std::set<int> say_so;
  for (const auto& rank : attempt.ranks) {
    for (const auto& line : rank.last_lines) {
      const auto missing = missing_ranks(line);
      if (!missing.empty()) say_so.insert(rank.rank);
      for (const int other : missing) said.emplace(other, line);
    }
  }
  for (auto& rank : attempt.ranks) {
    const auto found = said.find(rank.rank);
    if (found != said.end() && rank.stopped_by_us && !say_so.contains(rank.rank)) {
      rank.missed = found->second;
    }
  }
}

const RankEnd* first_cause(const AttemptEnd& attempt) {
  const auto cause =
      std::min_element(attempt.ranks.begin(), attempt.ranks.end(),
                       [](const auto& a, const auto& b) { return blame(a) < blame(b); });
  const bool none = cause == attempt.ranks.end() || !(cause->failed() || cause->did_not_come());
  return none ? nullptr : &*cause;
}

std::string describe(const RankEnd& rank) {
  std::string text = fmt::format("rank {} (pid {}) ", rank.rank, rank.pid);
  if (rank.was_halted) {
    text += "was stopped (SIGSTOP or a debugger)";
  } else if (rank.did_not_come()) {
    text += "still ran but did not come";
  } else if (WIFSIGNALED(rank.wait_status)) {
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
  if (rank.did_not_come()) return kFailureExit;
  return WIFSIGNALED(rank.wait_status) ? 128 + WTERMSIG(rank.wait_status)
                                       : WEXITSTATUS(rank.wait_status);
}

void report_failure(const RankEnd& cause, const AttemptEnd& attempt, OutputMode output) {
  const bool plain = output == OutputMode::plain;
  const bool users_error = plain && exit_code(cause) == kUserErrorExit;
  const auto* first = rank_0(attempt);
  const bool colours = ::isatty(2) == 1 && std::getenv("NO_COLOR") == nullptr && !users_error;
  std::string text = line_end(attempt, output);
  const auto elsewhere = missed_elsewhere(cause, attempt);
  if (!users_error && !elsewhere.empty()) {
    text += fmt::format("tessera launch: {} did not come: {}\n", elsewhere, describe(cause));
  } else if (!users_error) {
    text += fmt::format("tessera launch: {}\n", describe(cause));
  }
  auto lines = cause.last_lines;
  if (!cause.missed.empty()) lines.push_front(cause.missed);
  for (const auto& line : lines) {
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
