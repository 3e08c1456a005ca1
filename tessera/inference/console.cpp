#include "tessera/inference/console.h"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/text.h"

namespace tessera::inference {
namespace {

/// Well below the deadline of the others, which wait for rank 0.
constexpr int kSignOfLifeMs = 20'000;

// The first byte of what rank 0 tells.
constexpr char kStillWaiting = 'w', kText = 't', kEnd = 'e', kInterrupt = 'i';

volatile std::sig_atomic_t noted_interrupt = 0;

bool take_noted_interrupt() { return std::exchange(noted_interrupt, 0) != 0; }

}  // namespace

void note_interrupts() {
  struct sigaction action {};
  action.sa_handler = [](int) { noted_interrupt = 1; };
  if (::sigaction(SIGINT, &action, nullptr) != 0) system_error("SIGINT cannot be noted");
}

void write_out(const mesh::DeviceMesh& mesh, std::string_view text) {
  if (mesh.rank() != 0) return;
  static const bool at_terminal = ::isatty(STDOUT_FILENO) == 1;
  const auto shown = at_terminal ? printable(text, LineBreaks::kept) : std::string(text);
  const auto count = std::fwrite(shown.data(), 1, shown.size(), stdout);
  if (count != shown.size() || std::fflush(stdout) != 0)
    system_error("standard output: cannot be written");
}

void write_note(const mesh::DeviceMesh& mesh, std::string_view line) {
  if (mesh.rank() == 0 && !line.empty()) fmt::print(stderr, "{}\n", printable(line));
}

std::string Input::told(const std::string& message) {
  return ranks_.size() == 1 ? message : ranks_.all_gather_bytes(message).front();
}

/// False: nothing came for some time.
bool Input::wait_and_read() {
  pollfd input{.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
  const int ready = ::poll(&input, 1, kSignOfLifeMs);
  if (ready == 0) return false;
  std::array<char, 4096> bytes;
  const auto count = ready < 0 ? -1 : ::read(STDIN_FILENO, bytes.data(), bytes.size());
  if (count < 0 && errno != EINTR) system_error("standard input: cannot be read");
  if (count > 0) waiting_.append(bytes.data(), static_cast<size_t>(count));
  at_end_ = count == 0;
  return true;
}

std::optional<std::string> Input::shared(bool whole) {
  while (ranks_.rank() != 0) {
    auto message = told("");
    interrupted_ = message.front() == kInterrupt;
    if (message.front() == kEnd || interrupted_) return {};
    if (message.front() == kText) return message.substr(1);
  }
  const auto is_there = [&] {
    return at_end_ || (!whole && waiting_.find('\n') != std::string::npos);
  };
  while (!is_there() && !interrupted_) {
    if (!wait_and_read()) told({kStillWaiting});
    interrupted_ = take_noted_interrupt();
  }
  if (interrupted_ || (at_end_ && waiting_.empty())) {
    told({interrupted_ ? kInterrupt : kEnd});
    return {};
  }
  const auto end = whole ? waiting_.size() : std::min(waiting_.find('\n'), waiting_.size());
  const auto text = waiting_.substr(0, end);
  waiting_.erase(0, end + 1);
  return told(kText + text).substr(1);
}

bool Input::take_interrupt() {
  return told({take_noted_interrupt() ? kInterrupt : kStillWaiting}).front() == kInterrupt;
}

std::optional<std::string> Input::line() {
  auto line = shared(false);
  if (line && line->ends_with('\r')) line->pop_back();
  return line;
}

std::string Input::all() { return shared(true).value_or(""); }

}  // namespace tessera::inference
