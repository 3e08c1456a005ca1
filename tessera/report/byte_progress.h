// How far a command is with a known number of bytes: one line on a terminal, nothing elsewhere.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace tessera::report {

/// "step_00000100   41 %  412.0 MiB of 1.0 GiB  1.2 GiB/s  eta 0:03", rewritten at most ten times a
/// second on standard error, and gone at the end. Not thread-safe.
class ByteProgress {
 public:
  /// `earlier_bytes` were done before, which tell nothing of the speed.
  explicit ByteProgress(std::string what, int64_t earlier_bytes = 0)
      : what_(std::move(what)), earlier_bytes_(earlier_bytes) {}
  ~ByteProgress();
  ByteProgress(const ByteProgress&) = delete;
  ByteProgress& operator=(const ByteProgress&) = delete;

  void show(int64_t done_bytes, int64_t total_bytes);

 private:
  using Clock = std::chrono::steady_clock;

  std::string what_;
  int64_t earlier_bytes_;
  Clock::time_point start_ = Clock::now(), shown_;
  bool is_shown_ = false;
};

std::string byte_progress_line(const std::string& what, int64_t done_bytes, int64_t total_bytes,
                               double seconds, int64_t earlier_bytes = 0);

}  // namespace tessera::report
