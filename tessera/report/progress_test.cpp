#include "tessera/report/progress.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pty.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "tessera/base/error.h"

namespace tessera::report {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

StepRecord example(int64_t step) {
  return {.step = step,
          .loss = 4.1234,
          .grad_norm = 1.02,
          .learning_rate = 3e-4,
          .step_seconds = 0.352,
          .tokens_per_second = 5812,
          .mfu = 0.64,
          .memory_bytes = int64_t{410} << 20};
}

/// Both ends of a pipe or a pseudo terminal; what was written to `inner` can be read from `outer`.
struct Ends {
  int outer = -1, inner = -1;

  static Ends pipe() {
    std::array<int, 2> ends{};
    EXPECT_EQ(::pipe(ends.data()), 0);
    return {ends[0], ends[1]};
  }
  static Ends terminal(unsigned short columns) {
    Ends ends;
    winsize size{.ws_row = 24, .ws_col = columns, .ws_xpixel = 0, .ws_ypixel = 0};
    EXPECT_EQ(::openpty(&ends.outer, &ends.inner, nullptr, nullptr, &size), 0);
    return ends;
  }
  ~Ends() {
    ::close(outer);
    ::close(inner);
  }
  Ends() = default;
  Ends(int out, int in) : outer(out), inner(in) {}
  Ends(Ends&& other) noexcept
      : outer(std::exchange(other.outer, -1)), inner(std::exchange(other.inner, -1)) {}

  std::string read() const {
    ::fcntl(outer, F_SETFL, O_NONBLOCK);
    std::string text;
    std::array<char, 4096> buffer;
    for (ssize_t count; (count = ::read(outer, buffer.data(), buffer.size())) > 0;) {
      text.append(buffer.data(), static_cast<size_t>(count));
    }
    return text;
  }
};

/// What a terminal of `columns` shows after `text`, line by line: prints, returns, line feeds,
/// clears and wraps.
std::vector<std::string> screen(const std::string& text, size_t columns) {
  std::vector<std::vector<std::string>> lines(1);
  size_t row = 0, column = 0;
  for (size_t i = 0; i < text.size();) {
    if (text[i] == '\r') {
      column = 0, ++i;
    } else if (text[i] == '\n') {
      if (++row == lines.size()) lines.emplace_back();
      ++i;
    } else if (text[i] == '\x1b') {
      const size_t end = text.find_first_of("Km", i);
      if (text[end] == 'K') lines[row].resize(column, " ");
      i = end + 1;
    } else {
      size_t next = i + 1;
      while (next < text.size() && (static_cast<unsigned char>(text[next]) & 0xC0) == 0x80) ++next;
      if (column == columns) {
        column = 0;
        if (++row == lines.size()) lines.emplace_back();
      }
      if (lines[row].size() <= column) lines[row].resize(column + 1, " ");
      lines[row][column++] = text.substr(i, next - i);
      i = next;
    }
  }
  std::vector<std::string> shown;
  for (const auto& line : lines) {
    shown.emplace_back();
    for (const auto& cell : line) shown.back() += cell;
  }
  return shown;
}

class ProgressTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ::unsetenv("NO_COLOR");
    ::unsetenv("COLUMNS");
    ::setenv("TERM", "xterm-256color", 1);
    ::setenv("LC_ALL", "C.UTF-8", 1);
  }
};

TEST_F(ProgressTest, PlainLinesHaveFixedColumns) {
  EXPECT_EQ(
      plain_line(example(12), 100, 31),
      "step    12/100  loss 4.1234   grad 1.02    lr 3.00e-04   5,812 tok/s  mfu 64 %  mem  410 "
      "MiB  eta 0:31");
  auto large = example(100);
  large.loss = 11.25, large.grad_norm = 123.5, large.tokens_per_second = 98765, large.mfu = -1;
  large.memory_bytes = int64_t{3} << 29, large.validation_loss = 4.5;
  const auto line = plain_line(large, 100, 0);
  EXPECT_EQ(line.find("lr"), plain_line(example(12), 100, 31).find("lr"));
  EXPECT_EQ(line.find("  eta"), plain_line(example(12), 100, 31).find("  eta"));
  EXPECT_THAT(line, HasSubstr("mfu    -  mem  1.5 GiB  eta 0:00  val 4.5000"));
}

TEST_F(ProgressTest, NamedFiguresStandInTheLine) {
  const StepRecord record{.step = 1,
                          .validation_loss = 0.5,
                          .figures = {{"a/b", 1, ""}, {"a/accuracies", 0.75, "acc"}},
                          .validation_figures = {{"a/accuracies", 0.25, "acc"}}};
  EXPECT_TRUE(plain_line(record, 2, -1).ends_with("  acc 0.75  val 0.5000  val acc 0.25"));
  EXPECT_NE(terminal_line(record, 2, -1, {.columns = 200}).find("acc 0.75"), std::string::npos);
}

TEST_F(ProgressTest, APipeGetsPlainLinesWithoutControlBytes) {
  const auto pipe = Ends::pipe();
  Progress progress({.total_steps = 10, .every = 4, .fd = pipe.inner});
  progress.message("starting");
  for (int64_t step = 1; step <= 10; ++step) progress.step(example(step));
  progress.end_line();
  const auto text = pipe.read();
  EXPECT_EQ(text.find_first_of("\r\x1b"), std::string::npos);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 5);  // starting, 1, 4, 8, 10
  EXPECT_EQ(text.rfind("starting\nstep     1/10 ", 0), 0);
  EXPECT_EQ(text.find("eta"),
            text.find("eta 0:02"));  // none at step 1; 6 steps of 0.352 s at step 4
}

TEST_F(ProgressTest, ATerminalShowsOneLineThatIsRewritten) {
  const auto terminal = Ends::terminal(100);
  Progress progress({.total_steps = 10, .fd = terminal.inner});
  for (int64_t step = 1; step <= 5; ++step) progress.step(example(step));
  const auto text = terminal.read();
  const auto lines = screen(text, 100);
  ASSERT_EQ(lines.size(), 1);
  EXPECT_THAT(lines[0], HasSubstr("━─"));
  EXPECT_THAT(lines[0], HasSubstr("5/10  loss 4.1234  5,812 tok/s  MFU 64 %  410 MiB  eta 0:02"));
  EXPECT_THAT(text, HasSubstr("\x1b[36m"));
  EXPECT_EQ(text.find("eta"), text.find("eta 0:03"));  // the first step shows none
}

TEST_F(ProgressTest, MessagesStandAboveTheLine) {
  const auto terminal = Ends::terminal(100);
  Progress progress({.total_steps = 10, .fd = terminal.inner});
  progress.step(example(1));
  progress.message("validation loss 4.2");
  progress.step(example(2));
  progress.end_line();
  progress.message("done");
  const auto lines = screen(terminal.read(), 100);
  ASSERT_EQ(lines.size(), 4);
  EXPECT_EQ(lines[0], "validation loss 4.2");
  EXPECT_THAT(lines[1], HasSubstr("2/10"));
  EXPECT_EQ(lines[2], "done");
  EXPECT_EQ(lines[3], "");
}

TEST_F(ProgressTest, NeverWrapsHoweverNarrow) {
  for (const unsigned short columns : {10, 20, 40, 60, 80, 132, 300}) {
    const auto terminal = Ends::terminal(columns);
    Progress progress({.total_steps = 100'000, .fd = terminal.inner});
    progress.step(example(1));
    auto record = example(99'999);
    record.validation_loss = 3.5;
    progress.step(record);
    const auto lines = screen(terminal.read(), columns);
    ASSERT_EQ(lines.size(), 1) << columns;
    EXPECT_THAT(lines[0], HasSubstr(columns > 13 ? "99999/100000" : "99999/100"));
    if (columns >= 40) {
      EXPECT_THAT(lines[0], HasSubstr("loss 4.1234"));
    }
    if (columns == 40) {
      EXPECT_THAT(lines[0], Not(HasSubstr("MiB")));
    }
    if (columns >= 80) {
      EXPECT_THAT(lines[0], HasSubstr("410 MiB"));
    }
  }
}

TEST_F(ProgressTest, FollowsAResizedWindow) {
  const auto terminal = Ends::terminal(120);
  Progress progress({.total_steps = 10, .fd = terminal.inner});
  progress.step(example(1));
  EXPECT_THAT(terminal.read(), HasSubstr("MiB"));
  const winsize narrow{.ws_row = 24, .ws_col = 40, .ws_xpixel = 0, .ws_ypixel = 0};
  ASSERT_EQ(::ioctl(terminal.inner, TIOCSWINSZ, &narrow), 0);
  progress.step(example(2));
  const auto text = terminal.read();
  EXPECT_THAT(text, Not(HasSubstr("MiB")));
  EXPECT_EQ(screen(text, 40).size(), 1);
}

TEST_F(ProgressTest, KeepsToPlainTextWhereAskedTo) {
  const auto terminal = Ends::terminal(100);
  ::setenv("NO_COLOR", "1", 1);
  ::setenv("LC_ALL", "C", 1);
  {
    Progress progress({.total_steps = 10, .fd = terminal.inner});
    progress.step(example(5));
    const auto text = terminal.read();
    EXPECT_THAT(text, Not(HasSubstr("\x1b[3")));
    EXPECT_THAT(text, HasSubstr("##--"));
  }
  ::setenv("TERM", "dumb", 1);
  terminal.read();
  Progress dumb({.total_steps = 10, .fd = terminal.inner});
  dumb.step(example(5));
  EXPECT_EQ(terminal.read().rfind("step     5/10 ", 0), 0);
}

TEST_F(ProgressTest, NonePrintsMessagesOnly) {
  const auto pipe = Ends::pipe();
  Progress progress({.mode = ProgressMode::none, .total_steps = 2, .fd = pipe.inner});
  progress.step(example(1));
  progress.message("warning");
  EXPECT_EQ(pipe.read(), "warning\n");
}

TEST_F(ProgressTest, AClosedPipeDoesNotEndTheRun) {
  const auto previous = std::signal(SIGPIPE, SIG_IGN);
  auto pipe = Ends::pipe();
  ::close(std::exchange(pipe.outer, -1));
  Progress progress({.total_steps = 2, .fd = pipe.inner});
  progress.step(example(1));
  progress.message("nobody reads this");
  std::signal(SIGPIPE, previous);
}

TEST_F(ProgressTest, NotFiniteValuesAreShown) {
  auto record = example(1);
  record.loss = NAN, record.grad_norm = INFINITY, record.tokens_per_second = NAN;
  EXPECT_THAT(plain_line(record, 10, NAN), HasSubstr("loss nan"));
  EXPECT_THAT(plain_line(record, 10, -1), HasSubstr("- tok/s"));
  EXPECT_THAT(terminal_line(record, 10, -1, {.color = true}), HasSubstr("\x1b[1;31mloss nan"));
}

}  // namespace
}  // namespace tessera::report
