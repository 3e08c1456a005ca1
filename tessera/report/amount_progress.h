// How far a command is with a known number of bytes or tokens: one line on a terminal, nothing elsewhere.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace tessera::report {

enum class Amount { bytes, tokens };

/// "step_00000100   41 %  412.0 MiB of 1.0 GiB  1.2 GiB/s  eta 0:03", rewritten at most ten times a
/// second on standard error, and gone at the end. Not thread-safe.
class AmountProgress {
 public:
  /// `earlier` were done before, which tell nothing of the speed.
  explicit AmountProgress(std::string what, int64_t earlier = 0, Amount unit = Amount::bytes)
      : what_(std::move(what)), earlier_(earlier), unit_(unit) {}
  ~AmountProgress();
  AmountProgress(const AmountProgress&) = delete;
  AmountProgress& operator=(const AmountProgress&) = delete;

  void show(int64_t done, int64_t total);

 private:
  using Clock = std::chrono::steady_clock;

  std::string what_;
  int64_t earlier_;
  Amount unit_;
  Clock::time_point start_ = Clock::now(), shown_;
  bool is_shown_ = false;
};

struct AmountDone {
  int64_t done = 0, total = 0, earlier = 0;
  double seconds = 0;  ///< since the earlier ones
  Amount unit = Amount::bytes;
};

std::string amount_progress_line(const std::string& what, const AmountDone& amount);

}  // namespace tessera::report
