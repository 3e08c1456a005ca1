#include "tessera/report/progress.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/nearest.h"
#include "tessera/base/text.h"
#include "tessera/base/units.h"
#include "tessera/report/number.h"
#include "tessera/report/output.h"
#include "tessera/report/terminal.h"

namespace tessera::report {
namespace {

constexpr std::string_view kReset = "\x1b[0m", kDim = "\x1b[2m", kBold = "\x1b[1m",
                           kCyan = "\x1b[36m", kRed = "\x1b[1;31m";

bool utf8_locale() {
  // POSIX: the first of these that is set and not empty decides.
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const auto value = environment(name);
    if (value.empty()) continue;
    for (const auto* form : {"UTF-8", "utf-8", "UTF8", "utf8"}) {
      if (value.find(form) != std::string_view::npos) return true;
    }
    return false;
  }
  return false;
}

std::string speed(double tokens_per_second) {
  if (!std::isfinite(tokens_per_second)) return "- tok/s";
  return with_commas(std::llround(tokens_per_second)) + " tok/s";
}

std::string share(double mfu) {
  return mfu >= 0 ? fmt::format("{:.0f} %", 100 * mfu) : std::string("-");
}

/// Whole MiB below a GiB: a tenth of one only flickers.
std::string memory(int64_t bytes) {
  constexpr int64_t kMebibyte = int64_t{1} << 20;
  if (bytes >= kMebibyte && bytes < 1000 * kMebibyte) {
    return fmt::format("{:.0f} MiB", static_cast<double>(bytes) / kMebibyte);
  }
  return format_bytes(bytes);
}

struct Field {
  std::string text;
  int rank = 0;  ///< the higher, the sooner it gives way
  std::string_view color = {};
};

int width(const std::vector<Field>& fields) {
  int sum = 0;
  for (const auto& field : fields) sum += static_cast<int>(field.text.size()) + 2;
  return sum - 2;
}

/// Drops fields until at most `room` columns are taken; the first stays.
void fit(std::vector<Field>& fields, int room) {
  while (fields.size() > 1 && width(fields) > room) {
    fields.erase(std::max_element(fields.begin(), fields.end(),
                                  [](const Field& a, const Field& b) { return a.rank < b.rank; }));
  }
}

std::string bar(double done, int columns, const LineStyle& style) {
  const int full = std::clamp(static_cast<int>(done * columns), 0, columns);
  std::string out(style.color ? kCyan : "");
  for (int i = 0; i < columns; ++i) {
    if (i == full && style.color) out.append(kReset).append(kDim);
    if (style.utf8) {
      out += i < full ? "━" : "─";
    } else {
      out += i < full ? '#' : '-';
    }
  }
  return style.color ? out.append(kReset) : out;
}

}  // namespace

std::string plain_line(const StepRecord& record, int64_t total_steps, double eta_seconds) {
  const size_t digits = fmt::formatted_size("{}", total_steps);
  std::string line = fmt::format(
      "step {:>{}}/{}  loss {:<7.4f}  grad {:<6.2f}  lr {:.2e}  {:>12}  mfu {:>4}  mem {:>8}",
      record.step, std::max<size_t>(digits, 5), total_steps, record.loss, record.grad_norm,
      record.learning_rate, speed(record.tokens_per_second), share(record.mfu),
      memory(record.memory_bytes));
  for (const auto& figure : shown_figures(record.figures)) line += "  " + figure;
  if (eta_seconds >= 0) line += "  eta " + clock_time(eta_seconds);
  if (record.validation_loss) line += fmt::format("  val {:.4f}", *record.validation_loss);
  for (const auto& figure : shown_figures(record.validation_figures, "val ")) line += "  " + figure;
  return line;
}

std::string terminal_line(const StepRecord& record, int64_t total_steps, double eta_seconds,
                          const LineStyle& style) {
  const int room = std::max(style.columns - 1, 1);
  std::vector<Field> fields{
      {fmt::format("{}/{}", record.step, total_steps), 0, kBold},
      {fmt::format("loss {:.4f}", record.loss), 1, std::isfinite(record.loss) ? "" : kRed}};
  if (record.validation_loss)
    fields.push_back({fmt::format("val {:.4f}", *record.validation_loss), 2});
  for (auto& figure : shown_figures(record.figures)) fields.push_back({std::move(figure), 3});
  fields.push_back({speed(record.tokens_per_second), 4});
  if (record.mfu >= 0) fields.push_back({"MFU " + share(record.mfu), 5});
  fields.push_back({memory(record.memory_bytes), 6});
  if (eta_seconds >= 0) fields.push_back({"eta " + clock_time(eta_seconds), 3, kDim});
  fit(fields, room);

  std::string line;
  const int left = room - width(fields) - 2;
  if (left >= 6) {
    const double done =
        total_steps > 0 ? static_cast<double>(record.step) / static_cast<double>(total_steps) : 0;
    line = bar(done, std::min(left, 28), style) + "  ";
  }
  for (size_t i = 0; i < fields.size(); ++i) {
    const auto& [text, rank, color] = fields[i];
    if (i > 0) line += "  ";
    const auto shown = std::string_view(text).substr(0, static_cast<size_t>(room));
    if (style.color && !color.empty()) {
      line.append(color).append(shown).append(kReset);
    } else {
      line += shown;
    }
  }
  return line;
}

bool line_is_due(int64_t step, int64_t every, int64_t total_steps) {
  return step == 1 || step % std::max<int64_t>(every, 1) == 0 || step == total_steps;
}

Progress::Progress(const ProgressOptions& options) : options_(options) {
  const bool capable = is_capable_terminal(options_.fd);
  if (options_.mode == ProgressMode::automatic) {
    options_.mode = capable ? ProgressMode::line : ProgressMode::plain;
  }
  color_ = capable && environment("NO_COLOR").empty();
  utf8_ = utf8_locale();
}

Progress::~Progress() { end_line(); }

double Progress::eta_seconds(const StepRecord& record) {
  if (steps_shown_++ == 0) return -1;
  // An exponential mean, divided by its weight so that the start is not drawn to zero.
  constexpr double kKeep = 0.95;
  mean_seconds_ = kKeep * mean_seconds_ + (1 - kKeep) * record.step_seconds;
  mean_weight_ = kKeep * mean_weight_ + (1 - kKeep);
  const auto left = static_cast<double>(std::max<int64_t>(options_.total_steps - record.step, 0));
  return left * mean_seconds_ / mean_weight_;
}

void Progress::step(const StepRecord& record) {
  const bool first = steps_shown_ == 0;
  const double eta = eta_seconds(record);
  if (options_.mode == ProgressMode::line) {
    const LineStyle style{.columns = terminal_columns(options_.fd), .color = color_, .utf8 = utf8_};
    line_ = terminal_line(record, options_.total_steps, eta, style);
    write_all(options_.fd, std::string(kStartOfLine) + line_);
  } else if (options_.mode == ProgressMode::plain) {
    if (first || line_is_due(record.step, options_.every, options_.total_steps)) {
      write_all(options_.fd, plain_line(record, options_.total_steps, eta) + "\n");
    }
  }
}

void Progress::message(const std::string& text) {
  const auto line = printable(text);
  if (line_.empty()) {
    write_all(options_.fd, line + "\n");
  } else {
    write_all(options_.fd, fmt::format("{}{}\n{}", kStartOfLine, line, line_));
  }
}

void Progress::end_line() {
  if (line_.empty()) return;
  write_all(options_.fd, "\n");
  line_.clear();
}

}  // namespace tessera::report
