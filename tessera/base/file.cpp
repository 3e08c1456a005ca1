#include "tessera/base/file.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/input_file.h"
#include "tessera/base/path_error.h"
#include "tessera/base/random.h"

namespace tessera {
namespace {

/// "PATH.<16 hex digits>.partial": nobody else, in whatever container or on whatever machine, draws
/// the same.
std::filesystem::path temporary_name(std::filesystem::path path) {
  return path += fmt::format(".{}.partial", random_hex(8));
}

}  // namespace

MappedFile::MappedFile(const std::filesystem::path& path) : path_(path) {
  const InputFile file(path);
  size_ = file.size();
  if (size_ > 0) {
    void* address = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file.descriptor(), 0);
    if (address == MAP_FAILED) system_error(path.string() + ": cannot be mapped");
    data_ = static_cast<const std::byte*>(address);
    watched_ = mapped_files::add(path_, data_, size_);
  }
}

MappedFile::~MappedFile() {
  if (data_ == nullptr) return;
  mapped_files::remove(watched_);
  ::munmap(const_cast<std::byte*>(data_), size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      watched_(std::exchange(other.watched_, nullptr)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(watched_, other.watched_);
  return *this;
}

AtomicFile::AtomicFile(std::filesystem::path path) : path_(std::move(path)) {
  temporary_ = temporary_name(path_);
  fd_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
  if (fd_ < 0) system_error(path_.string() + ": cannot be written");
}

AtomicFile::~AtomicFile() {
  if (fd_ < 0) return;
  ::close(fd_);
  ::unlink(temporary_.c_str());
}

void AtomicFile::write(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) system_error(path_.string() + ": cannot be written");
    bytes.remove_prefix(static_cast<size_t>(written));
  }
}

void AtomicFile::commit() {
  if (::fsync(fd_) != 0) system_error(path_.string() + ": cannot be flushed");
  ::close(std::exchange(fd_, -1));
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) {
    const int error = errno;
    ::unlink(temporary_.c_str());
    errno = error;
    system_error(path_.string() + ": cannot be renamed into place");
  }
}

void make_folder(const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) path_error(folder.string() + ": cannot be made", error);
}

std::filesystem::path make_temporary_folder(const std::filesystem::path& path) {
  auto name = temporary_name(path);
  if (::mkdir(name.c_str(), 0777) != 0) system_error(path.string() + ": cannot be made");
  return name;
}

bool is_there(const std::filesystem::path& path) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) == 0) return true;
  if (errno == ENOENT || errno == ENOTDIR) return false;
  system_error(path.string() + ": cannot be looked at");
}

void flush_folder(const std::filesystem::path& folder) {
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0 || ::fsync(fd) != 0) {
    const int error = errno;
    if (fd >= 0) ::close(fd);
    errno = error;
    system_error(folder.string() + ": cannot be flushed");
  }
  ::close(fd);
}

bool rename_new(const std::filesystem::path& from, const std::filesystem::path& to) {
  if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) == 0) return true;
  if (errno == EINVAL || errno == ENOSYS) {  // a file system that knows no such rename
    if (is_there(to)) return false;
    if (::rename(from.c_str(), to.c_str()) == 0) return true;
  }
  if (errno == EEXIST) return false;
  system_error(fmt::format("{}: cannot be renamed to {}", from.string(), to.string()));
}

int open_to_append(const std::filesystem::path& path) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_NONBLOCK | O_CLOEXEC, 0644);
  const int error = errno;
  struct stat status {};
  const bool known = fd >= 0 ? ::fstat(fd, &status) == 0 : ::stat(path.c_str(), &status) == 0;
  if (known && S_ISFIFO(status.st_mode)) {
    if (fd >= 0) ::close(fd);
    user_error("{}: expected a regular file, got a named pipe", path.string());
  }
  errno = error;
  if (fd < 0) system_error(path.string() + ": cannot be written");
  return fd;
}

void write_file(const std::filesystem::path& path, std::string_view content) {
  AtomicFile file(path);
  file.write(content);
  file.commit();
}

std::string why_not_writable(const std::filesystem::path& folder) {
  auto probe = std::filesystem::absolute(folder).lexically_normal();
  std::error_code ignored;
  while (!std::filesystem::exists(std::filesystem::symlink_status(probe, ignored)) &&
         probe.has_relative_path()) {
    probe = probe.parent_path();
  }
  auto name = (probe / ".tessera.XXXXXX").string();
  if (::mkdtemp(name.data()) == nullptr) return std::strerror(errno);
  ::rmdir(name.c_str());
  return "";
}

std::string read_file(const std::filesystem::path& path) {
  return std::string(MappedFile(path).text());
}

void open_standard_files() {
  for (int fd = ::open("/dev/null", O_RDWR); fd >= 0; fd = ::open("/dev/null", O_RDWR)) {
    if (fd <= 2) continue;
    ::close(fd);
    return;
  }
}

}  // namespace tessera
