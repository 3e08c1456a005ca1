#include "tessera/base/input_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "tessera/base/file.h"

namespace tessera {
namespace {

const char* kind_of(mode_t mode) {
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISFIFO(mode)) return "a named pipe";
  return S_ISSOCK(mode) ? "a socket" : "a device";
}

int64_t write_time_ns(const struct stat& status) {
  return int64_t{status.st_mtim.tv_sec} * 1'000'000'000 + status.st_mtim.tv_nsec;
}

[[noreturn]] void refuse_changed(const std::filesystem::path& path) {
  user_error("{}: it was written to while it was read; start again once it is whole",
             path.string());
}

}  // namespace

InputFile::InputFile(const std::filesystem::path& path) : path_(path) {
  // O_NONBLOCK: a named pipe would wait for somebody who writes.
  fd_ = ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  if (fd_ < 0) {
    const auto line = fmt::format("{}: cannot be opened: {}", path.string(), std::strerror(errno));
    if (errno == ENOENT) throw MissingFile(line);
    throw UserError(line);
  }
  struct stat status {};
  if (::fstat(fd_, &status) != 0 || !S_ISREG(status.st_mode)) {
    ::close(fd_);
    user_error("{}: expected a regular file, got {}", path.string(), kind_of(status.st_mode));
  }
  size_ = static_cast<size_t>(status.st_size);
  changed_ns_ = write_time_ns(status);
}

InputFile::~InputFile() {
  if (fd_ >= 0) ::close(fd_);
}

InputFile::InputFile(InputFile&& other) noexcept
    : path_(std::move(other.path_)),
      fd_(std::exchange(other.fd_, -1)),
      size_(other.size_),
      changed_ns_(other.changed_ns_) {}

InputFile& InputFile::operator=(InputFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(fd_, other.fd_);
  std::swap(size_, other.size_);
  std::swap(changed_ns_, other.changed_ns_);
  return *this;
}

size_t InputFile::read(std::span<char> to) {
  for (;;) {
    const ssize_t got = ::read(fd_, to.data(), to.size());
    if (got >= 0) return static_cast<size_t>(got);
    if (errno != EINTR) system_error(path_.string() + ": cannot be read");
  }
}

void InputFile::read_at(uint64_t offset, std::span<char> to) const {
  while (!to.empty()) {
    const ssize_t got = ::pread(fd_, to.data(), to.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) system_error(path_.string() + ": cannot be read");
    if (got == 0) refuse_changed(path_);
    to = to.subspan(static_cast<size_t>(got));
    offset += static_cast<uint64_t>(got);
  }
}

void InputFile::check_unchanged() const {
  struct stat status {};
  if (::fstat(fd_, &status) != 0) system_error(path_.string() + ": cannot be looked at");
  if (static_cast<size_t>(status.st_size) != size_ || write_time_ns(status) != changed_ns_)
    refuse_changed(path_);
}

}  // namespace tessera
