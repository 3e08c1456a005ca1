#include "tessera/report/output.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "tessera/base/error.h"

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
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  const bool written = fd >= 0 && write_all(fd, text);
  const int error = errno;
  if (fd >= 0) ::close(fd);
  errno = error;
  if (!written) system_error(path.string() + ": cannot be written");
}

std::string in_quotes(const std::string& text, char quote) {
  std::string quoted(1, quote);
  for (const char c : text) quoted.append(c == quote ? 2 : 1, c);
  return quoted + quote;
}

void make_folder(const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error)
    throw SystemError(fmt::format("{}: cannot be made: {}", folder.string(), error.message()));
}

}  // namespace tessera::report
