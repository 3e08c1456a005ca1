#include "tessera/launch/rank_output.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <utility>

namespace tessera::launch {
namespace {

constexpr size_t kLongestLine = 64 << 10;

}  // namespace

void write_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd, bytes.data(), bytes.size());
    if (written >= 0) {
      bytes.remove_prefix(static_cast<size_t>(written));
    } else if (errno == EAGAIN) {  // somebody else set our terminal or pipe to non-blocking
      pollfd writable{fd, POLLOUT, 0};
      ::poll(&writable, 1, 1000);
    } else if (errno != EINTR) {
      return;
    }
  }
}

RankStream::RankStream(FileDescriptor pipe, RankStreamOptions options)
    : pipe_(std::move(pipe)), options_(std::move(options)) {}

void RankStream::read_some() {
  std::array<char, 64 << 10> buffer;
  const ssize_t got = ::read(pipe_.get(), buffer.data(), buffer.size());
  if (got > 0) {
    take({buffer.data(), static_cast<size_t>(got)});
  } else if (got == 0 || (errno != EINTR && errno != EAGAIN)) {
    end();
  }
}

void RankStream::drain() {
  while (pipe_.is_open()) {
    pollfd readable{pipe_.get(), POLLIN, 0};
    if (::poll(&readable, 1, 0) <= 0) break;
    read_some();
  }
  if (pipe_.is_open()) end();
}

void RankStream::take(std::string_view bytes) {
  if (options_.log_fd >= 0) write_all(options_.log_fd, bytes);
  if (options_.show == RankStreamOptions::Show::unchanged) write_all(options_.shown_on, bytes);
  std::string shown;  // one write for all lines of a chunk
  for (const char c : bytes) {
    const bool second_of_pair = c == '\n' && after_return_;
    after_return_ = c == '\r';
    if (second_of_pair) continue;
    if (c == '\n' || c == '\r') {
      end_line(shown);
    } else {
      line_ += c;
      if (line_.size() >= kLongestLine) end_line(shown);
    }
  }
  write_all(options_.shown_on, shown);
}

void RankStream::end_line(std::string& shown) {
  if (options_.show == RankStreamOptions::Show::prefixed) shown += options_.prefix + line_ + '\n';
  if (options_.num_last_lines > 0) {
    last_lines_.push_back(std::move(line_));
    if (last_lines_.size() > options_.num_last_lines) last_lines_.pop_front();
  }
  line_.clear();
}

void RankStream::end() {
  pipe_.reset();
  if (line_.empty()) return;
  std::string shown;
  end_line(shown);
  write_all(options_.shown_on, shown);
}

}  // namespace tessera::launch
