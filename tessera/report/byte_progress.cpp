#include "tessera/report/byte_progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "tessera/base/units.h"
#include "tessera/report/number.h"
#include "tessera/report/output.h"
#include "tessera/report/terminal.h"

namespace tessera::report {

std::string byte_progress_line(const std::string& what, int64_t done_bytes, int64_t total_bytes,
                               double seconds, int64_t earlier_bytes) {
  const auto done = static_cast<double>(done_bytes), total = static_cast<double>(total_bytes);
  std::string line =
      fmt::format("{}  {:>3.0f} %  {} of {}", what, total > 0 ? 100 * done / total : 100,
                  format_bytes(done_bytes), format_bytes(total_bytes));
  if (seconds > 0 && done_bytes > earlier_bytes) {
    const double speed = static_cast<double>(done_bytes - earlier_bytes) / seconds;
    line += fmt::format("  {}/s  eta {}", format_bytes(static_cast<int64_t>(speed)),
                        clock_time(std::max(total - done, 0.0) / speed));
  }
  return line;
}

void ByteProgress::show(int64_t done_bytes, int64_t total_bytes) {
  const auto now = Clock::now();
  if (!is_capable_terminal(STDERR_FILENO) || now - shown_ < std::chrono::milliseconds(100)) return;
  const auto line =
      byte_progress_line(what_, done_bytes, total_bytes,
                         std::chrono::duration<double>(now - start_).count(), earlier_bytes_);
  // A full line would wrap.
  const auto room = static_cast<size_t>(std::max(terminal_columns(STDERR_FILENO) - 1, 1));
  write_all(STDERR_FILENO, std::string(kStartOfLine) + line.substr(0, room));
  shown_ = now;
  is_shown_ = true;
}

ByteProgress::~ByteProgress() {
  if (is_shown_) write_all(STDERR_FILENO, kStartOfLine);
}

}  // namespace tessera::report
