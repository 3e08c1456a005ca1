#include "tessera/hub/file_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <thread>

#include "tessera/base/error.h"

namespace tessera::hub {
namespace fs = std::filesystem;
namespace {

uintmax_t size_of(const fs::path& path) {
  std::error_code ignored;
  return fs::file_size(path, ignored);
}

}  // namespace

FileLock::FileLock(const fs::path& path, const fs::path& watched, const Settings& settings) {
  using Clock = std::chrono::steady_clock;
  fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0664);
  if (fd_ < 0) system_error(path.string() + ": cannot be opened");
  auto last_change = Clock::now();
  auto size = size_of(watched);
  while (::flock(fd_, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) return;
    if (const auto now = size_of(watched); now != size) {
      size = now;
      last_change = Clock::now();
    }
    if (Clock::now() - last_change > std::chrono::seconds(settings.lock_seconds)) {
      ::close(fd_);
      user_error(
          "{}: held for {} s by another process whose download makes no progress; end it and "
          "run again",
          path.string(), settings.lock_seconds);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
}

FileLock::~FileLock() { ::close(fd_); }

}  // namespace tessera::hub
