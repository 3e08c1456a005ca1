#include "tessera/report/output.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>

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

}  // namespace tessera::report
