#include "tessera/report/output.h"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>

#include "tessera/base/error.h"
#include "tessera/base/file.h"

namespace tessera::report {

bool write_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd, bytes.data(), bytes.size());
    if (written >= 0) {
      bytes.remove_prefix(static_cast<size_t>(written));
    } else if (errno == EAGAIN) {
      // A terminal or pipe that another process made non-blocking: wait for room, at most a second.
      pollfd room{.fd = fd, .events = POLLOUT, .revents = 0};
      if (::poll(&room, 1, 1000) == 0) return errno = EAGAIN, false;
    } else if (errno != EINTR) {
      return false;
    }
  }
  return true;
}

void append_to_file(const std::filesystem::path& path, std::string_view text) {
  const int fd = open_to_append(path);
  const bool written = write_all(fd, text);
  const int error = errno;
  ::close(fd);
  errno = error;
  if (!written) system_error(path.string() + ": cannot be written");
}

std::string in_quotes(const std::string& text, char quote) {
  std::string quoted(1, quote);
  for (const char c : text) quoted.append(c == quote ? 2 : 1, c);
  return quoted + quote;
}

}  // namespace tessera::report
