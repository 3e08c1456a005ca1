#include "tessera/cli/menu.h"

#include <fmt/format.h>
#include <poll.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <iostream>
#include <optional>

#include "tessera/base/error.h"
#include "tessera/launch/signal_queue.h"
#include "tessera/report/terminal.h"

namespace tessera::cli {
namespace {

[[noreturn]] void input_ended(const std::string& question) {
  user_error("the input ended at the question '{}'; nothing was written", question);
}

/// Keys come one by one and unseen while it lives. Ctrl-C still is a signal; Ctrl-Z is not, as
/// nobody would put the terminal back.
class KeyByKey {
 public:
  explicit KeyByKey(int fd) : fd_(fd) {
    ::tcgetattr(fd, &before_);
    auto raw = before_;
    raw.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
    raw.c_cc[VSUSP] = _POSIX_VDISABLE;
    raw.c_cc[VMIN] = 1;
    raw.c_cc[VTIME] = 0;
    ::tcsetattr(fd, TCSADRAIN, &raw);
  }
  ~KeyByKey() { ::tcsetattr(fd_, TCSADRAIN, &before_); }
  KeyByKey(const KeyByKey&) = delete;
  KeyByKey& operator=(const KeyByKey&) = delete;

 private:
  int fd_;
  termios before_{};
};

void write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const auto written = ::write(fd, text.data(), text.size());
    if (written <= 0) return;  // the next read will tell that the terminal is gone
    text.remove_prefix(static_cast<size_t>(written));
  }
}

/// The lines of a menu, drawn over themselves.
class Drawing {
 public:
  Drawing(const std::vector<MenuItem>& items, int fd) : items_(items), fd_(fd) {
    for (const auto& item : items) width_ = std::max(width_, item.label.size());
  }

  void draw(size_t marked) {
    std::string text = drawn_ ? above() : "";
    const auto columns = static_cast<size_t>(report::terminal_columns(fd_));
    for (size_t i = 0; i < items_.size(); ++i) {
      auto line = fmt::format("{} {}. {:<{}}  {}", i == marked ? '>' : ' ', i + 1, items_[i].label,
                              width_, items_[i].note);
      line.resize(std::min(line.find_last_not_of(' ') + 1, columns - 1));  // a line stays one
      text += i == marked ? fmt::format("\x1b[1m{}\x1b[0m\n", line) : line + '\n';
    }
    write_all(fd_, text);
    drawn_ = true;
  }

  /// The picked item alone is left.
  void close(size_t picked) {
    write_all(fd_, fmt::format("{}> {}\n", above(), items_[picked].label));
  }

 private:
  std::string above() const { return fmt::format("\x1b[{}A\x1b[J", items_.size()); }

  const std::vector<MenuItem>& items_;
  int fd_;
  size_t width_ = 0;
  bool drawn_ = false;
};

/// What a key, or the bytes that a key sends, does to the mark.
struct Effect {
  size_t marked;
  bool picked = false, ended = false;
};

Effect effect_of(std::string_view key, size_t marked, size_t num_items) {
  const auto up = (marked + num_items - 1) % num_items, down = (marked + 1) % num_items;
  if (key == "\x1b[A" || key == "\x1bOA" || key == "k") return {up};
  if (key == "\x1b[B" || key == "\x1bOB" || key == "j" || key == "\t") return {down};
  if (key == "\n" || key == "\r") return {.marked = marked, .picked = true};
  if (key == "\x04") return {.marked = marked, .ended = true};
  if (key.size() == 1 && key[0] >= '1' && static_cast<size_t>(key[0] - '1') < num_items) {
    return {.marked = static_cast<size_t>(key[0] - '1'), .picked = true};
  }
  return {marked};
}

/// The first key of `bytes`, taken out of them; what an arrow or F5 sends ("ESC [ .. letter") is
/// one.
std::string take_key(std::string& bytes) {
  size_t length = 1;
  if (bytes.starts_with("\x1b[") || bytes.starts_with("\x1bO")) {
    length = 2;
    while (length < bytes.size() && bytes[length] < '@') ++length;
    ++length;
  }
  auto key = bytes.substr(0, length);
  bytes.erase(0, length);
  return key;
}

/// A signal that came, or "nothing but bytes": waits for either.
std::optional<int> wait_for_bytes(int fd, launch::SignalQueue& signals) {
  pollfd watched[] = {{.fd = fd, .events = POLLIN}, {.fd = signals.fd(), .events = POLLIN}};
  while (true) {
    if (::poll(watched, 2, -1) < 0 && errno != EINTR) system_error("poll");
    for (const int signal : signals.take()) return signal;
    if (watched[0].revents != 0) return std::nullopt;
  }
}

/// The picked item, or the signal that came first.
struct MenuOutcome {
  size_t picked = 0;
  std::optional<int> signal;
};

MenuOutcome pick_or_signal(const std::string& question, const std::vector<MenuItem>& items,
                           size_t marked, int fd) {
  launch::SignalQueue signals;
  const KeyByKey key_by_key(fd);
  Drawing drawing(items, fd);
  drawing.draw(marked);
  while (true) {
    if (const auto signal = wait_for_bytes(fd, signals)) return {marked, signal};
    char buffer[64];
    const auto length = ::read(fd, buffer, sizeof buffer);
    if (length <= 0) input_ended(question);
    for (std::string bytes(buffer, static_cast<size_t>(length)); !bytes.empty();) {
      const auto effect = effect_of(take_key(bytes), marked, items.size());
      marked = effect.marked;
      if (effect.ended) input_ended(question);
      if (!effect.picked) continue;
      drawing.close(marked);
      return {marked, std::nullopt};
    }
    drawing.draw(marked);
  }
}

/// A line from standard input.
std::string read_line(const std::string& question) {
  std::fflush(stdout);
  std::string line;
  if (!std::getline(std::cin, line)) input_ended(question);
  if (::isatty(STDIN_FILENO) == 0) fmt::print("{}\n", line);  // as a terminal would have shown
  const auto begin = line.find_first_not_of(" \t\r");
  if (begin == std::string::npos) return "";
  return line.substr(begin, line.find_last_not_of(" \t\r") - begin + 1);
}

/// Says what is wrong with a line; only somebody at a terminal can try again.
void complain(const std::string& question, const std::string& expected, const std::string& line) {
  if (::isatty(STDIN_FILENO) == 0) {
    user_error("question '{}': {}, got '{}'; nothing was written", question, expected, line);
  }
  fmt::print("{}, got '{}'\n", expected, line);
}

}  // namespace

size_t pick(const std::string& question, const std::vector<MenuItem>& items, size_t first, int fd) {
  std::fflush(stdout);
  write_all(fd, question + '\n');
  while (true) {
    const auto outcome = pick_or_signal(question, items, first, fd);
    if (!outcome.signal) return outcome.picked;
    ::raise(*outcome.signal);  // the terminal is as it was: what the signal does it does now
    first = outcome.picked;
  }
}

size_t pick_by_line(const std::string& question, const std::vector<MenuItem>& items, size_t first,
                    const std::vector<std::string>& words) {
  fmt::print("{}\n", question);
  size_t width = 0;
  for (const auto& item : items) width = std::max(width, item.label.size());
  for (size_t i = 0; i < items.size(); ++i) {
    const auto line = fmt::format("  {}. {:<{}}  {}", i + 1, items[i].label, width, items[i].note);
    fmt::print("{}\n", line.substr(0, line.find_last_not_of(' ') + 1));
  }
  while (true) {
    fmt::print("[{}]: ", first + 1);
    const auto line = read_line(question);
    if (line.empty()) return first;
    for (size_t i = 0; i < items.size(); ++i) {
      if (line == items[i].label || line == words[i]) return i;
    }
    size_t number = 0;
    const auto* end = line.data() + line.size();
    if (std::from_chars(line.data(), end, number).ptr == end && number >= 1 &&
        number <= items.size()) {
      return number - 1;
    }
    complain(question, fmt::format("expected a number from 1 to {}", items.size()), line);
  }
}

std::string ask_line(const std::string& question, const std::string& default_value,
                     const std::function<std::string(const std::string&)>& problem) {
  while (true) {
    fmt::print("{}{} ", question,
               default_value.empty() ? "" : fmt::format(" [{}]:", default_value));
    auto line = read_line(question);
    if (line.empty()) line = default_value;
    const auto expected = problem ? problem(line) : "";
    if (expected.empty()) return line;
    complain(question, expected, line);
  }
}

}  // namespace tessera::cli
