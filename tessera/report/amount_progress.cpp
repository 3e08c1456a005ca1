#include "tessera/report/amount_progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "tessera/base/units.h"
#include "tessera/report/number.h"
#include "tessera/report/output.h"
#include "tessera/report/terminal.h"

namespace tessera::report {

namespace {

std::string text_of(int64_t amount, Amount unit) {
  return unit == Amount::bytes ? format_bytes(amount) : with_commas(amount);
}

}  // namespace

std::string amount_progress_line(const std::string& what, const AmountDone& amount) {
  const auto done = static_cast<double>(amount.done), total = static_cast<double>(amount.total);
  std::string line =
      fmt::format("{}  {:>3.0f} %  {} of {}", what, total > 0 ? 100 * done / total : 100,
                  text_of(amount.done, amount.unit), text_of(amount.total, amount.unit));
  if (amount.unit == Amount::tokens) line += " tokens";
  if (amount.seconds > 0 && amount.done > amount.earlier) {
    const double speed = static_cast<double>(amount.done - amount.earlier) / amount.seconds;
    line += fmt::format("  {}/s  eta {}", text_of(static_cast<int64_t>(speed), amount.unit),
                        clock_time(std::max(total - done, 0.0) / speed));
  }
  return line;
}

void AmountProgress::show(int64_t done, int64_t total) {
  const auto now = Clock::now();
  if (!is_capable_terminal(STDERR_FILENO) || now - shown_ < std::chrono::milliseconds(100)) return;
  const auto line =
      amount_progress_line(what_, {.done = done,
                                   .total = total,
                                   .earlier = earlier_,
                                   .seconds = std::chrono::duration<double>(now - start_).count(),
                                   .unit = unit_});
  // A full line would wrap.
  const auto room = static_cast<size_t>(std::max(terminal_columns(STDERR_FILENO) - 1, 1));
  write_all(STDERR_FILENO, std::string(kStartOfLine) + line.substr(0, room));
  shown_ = now;
  is_shown_ = true;
}

AmountProgress::~AmountProgress() {
  if (is_shown_) write_all(STDERR_FILENO, kStartOfLine);
}

}  // namespace tessera::report
