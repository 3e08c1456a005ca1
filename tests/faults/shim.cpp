// Preloaded into a program (LD_PRELOAD), counts its calls that change files below one folder, and
// makes some of them go wrong.
//
//   TESSERA_FAULT_FOLDER  the folder; absolute, without links
//   TESSERA_FAULTS        "kill@7": SIGKILL after the 7th call; "torn@7": after half of what it
//                         writes; "enospc@7", "eio@7": it fails; "short": every write does half.
//                         Several: "eio@7,kill@9"
//   TESSERA_FAULT_RANK    only in the process whose RANK this is; unset: in all
//   TESSERA_FAULT_LOG     a file that gets a line for each call: its name and its paths
//
// Read anew at every call, so that a child may set them after fork.
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

namespace {

template <typename Function>
Function* next(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

std::string_view variable(const char* name) {
  const char* value = ::getenv(name);
  return value == nullptr ? std::string_view() : value;
}

std::string linked(const std::string& link) {
  char path[PATH_MAX];
  const ssize_t size = ::readlink(link.c_str(), path, sizeof(path));
  return size < 0 ? "" : std::string(path, static_cast<size_t>(size));
}

std::string path_of(int fd) { return linked("/proc/self/fd/" + std::to_string(fd)); }

std::string path_at(int folder, const char* name) {
  if (name[0] == '/') return name;
  return (folder == AT_FDCWD ? linked("/proc/self/cwd") : path_of(folder)) + "/" + name;
}

/// One call that counts, or one that is none of our business.
class Call {
 public:
  Call(const char* name, const std::string& path, const std::string& other = "") {
    const auto folder = variable("TESSERA_FAULT_FOLDER"), rank = variable("TESSERA_FAULT_RANK");
    if (folder.empty() || !path.starts_with(folder)) return;
    if (!rank.empty() && rank != variable("RANK")) return;
    static std::atomic<int> calls = 0;
    number_ = ++calls;
    log(std::string(name) + " " + path + (other.empty() ? "" : " " + other) + "\n");
  }

  /// The call itself, or its failure.
  template <typename Action>
  auto run(const Action& action) const -> decltype(action()) {
    for (const auto& [fault, error] : {std::pair{"enospc", ENOSPC}, std::pair{"eio", EIO}}) {
      if (!is(fault)) continue;
      errno = error;
      return -1;
    }
    const auto result = action();
    if (is("kill") || is("torn")) ::kill(::getpid(), SIGKILL);
    return result;
  }

  /// How much of `bytes` a write is to do. Direct output wants whole sectors.
  size_t cut(size_t bytes) const {
    constexpr size_t kSector = 512;
    if (number_ == 0 || bytes < 2 || (!is("torn") && variable("TESSERA_FAULTS") != "short")) {
      return bytes;
    }
    const size_t half = bytes / 2;
    return half >= kSector ? half / kSector * kSector : half;
  }

 private:
  bool is(const std::string& fault) const {
    const auto wanted = fault + "@" + std::to_string(number_);
    for (auto rest = variable("TESSERA_FAULTS"); number_ > 0 && !rest.empty();) {
      const auto comma = std::min(rest.find(','), rest.size());
      if (rest.substr(0, comma) == wanted) return true;
      rest.remove_prefix(std::min(comma + 1, rest.size()));
    }
    return false;
  }

  static void log(const std::string& line) {
    const char* path = ::getenv("TESSERA_FAULT_LOG");
    if (path == nullptr) return;
    const int fd =
        next<int(const char*, int, ...)>("open")(path, O_WRONLY | O_CREAT | O_APPEND, 0644);
    next<ssize_t(int, const void*, size_t)>("write")(fd, line.data(), line.size());
    ::close(fd);
  }

  int number_ = 0;
};

int open_counted(const char* name, int folder, const char* path, int flags, mode_t mode) {
  const auto real = next<int(int, const char*, int, ...)>("openat64");
  if ((flags & O_CREAT) == 0) return real(folder, path, flags, mode);
  return Call(name, path_at(folder, path)).run([&] { return real(folder, path, flags, mode); });
}

mode_t mode_argument(int flags, va_list arguments) {
  return (flags & O_CREAT) != 0 ? va_arg(arguments, mode_t) : 0;
}

}  // namespace

extern "C" {

int open(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_argument(flags, arguments);
  va_end(arguments);
  return open_counted("open", AT_FDCWD, path, flags, mode);
}

int open64(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_argument(flags, arguments);
  va_end(arguments);
  return open_counted("open", AT_FDCWD, path, flags, mode);
}

int openat(int folder, const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_argument(flags, arguments);
  va_end(arguments);
  return open_counted("open", folder, path, flags, mode);
}

ssize_t write(int fd, const void* data, size_t size) {
  const Call call("write", path_of(fd));
  return call.run(
      [&] { return next<ssize_t(int, const void*, size_t)>("write")(fd, data, call.cut(size)); });
}

ssize_t pwrite(int fd, const void* data, size_t size, off_t offset) {
  const Call call("pwrite", path_of(fd));
  return call.run([&] {
    return next<ssize_t(int, const void*, size_t, off_t)>("pwrite64")(fd, data, call.cut(size),
                                                                      offset);
  });
}

ssize_t pwrite64(int fd, const void* data, size_t size, off_t offset) {
  return pwrite(fd, data, size, offset);
}

int fsync(int fd) {
  return Call("fsync", path_of(fd)).run([&] { return next<int(int)>("fsync")(fd); });
}

int fdatasync(int fd) {
  return Call("fdatasync", path_of(fd)).run([&] { return next<int(int)>("fdatasync")(fd); });
}

int ftruncate(int fd, off_t size) noexcept {
  return Call("ftruncate", path_of(fd)).run([&] {
    return next<int(int, off_t)>("ftruncate64")(fd, size);
  });
}

int ftruncate64(int fd, off_t size) noexcept { return ftruncate(fd, size); }

int fallocate(int fd, int mode, off_t offset, off_t size) {
  return Call("fallocate", path_of(fd)).run([&] {
    return next<int(int, int, off_t, off_t)>("fallocate64")(fd, mode, offset, size);
  });
}

int fallocate64(int fd, int mode, off_t offset, off_t size) {
  return fallocate(fd, mode, offset, size);
}

int rename(const char* from, const char* to) noexcept {
  return Call("rename", path_at(AT_FDCWD, from), path_at(AT_FDCWD, to)).run([&] {
    return next<int(const char*, const char*)>("rename")(from, to);
  });
}

int mkdir(const char* path, mode_t mode) noexcept {
  return Call("mkdir", path_at(AT_FDCWD, path)).run([&] {
    return next<int(const char*, mode_t)>("mkdir")(path, mode);
  });
}

int unlink(const char* path) noexcept {
  return Call("unlink", path_at(AT_FDCWD, path)).run([&] {
    return next<int(const char*)>("unlink")(path);
  });
}

int rmdir(const char* path) noexcept {
  return Call("rmdir", path_at(AT_FDCWD, path)).run([&] {
    return next<int(const char*)>("rmdir")(path);
  });
}

int remove(const char* path) noexcept {
  return Call("remove", path_at(AT_FDCWD, path)).run([&] {
    return next<int(const char*)>("remove")(path);
  });
}

int unlinkat(int folder, const char* path, int flags) noexcept {
  return Call("unlinkat", path_at(folder, path)).run([&] {
    return next<int(int, const char*, int)>("unlinkat")(folder, path, flags);
  });
}

}  // extern "C"
