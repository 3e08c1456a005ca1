// A file in memory, filled anew for each input: for readers that want a path.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <string_view>

namespace tessera::fuzz {

class MemoryFile {
 public:
  explicit MemoryFile(const char* name) : file_(memfd_create(name, 0)) {}
  std::string path() const { return "/proc/self/fd/" + std::to_string(file_); }
  void fill(std::string_view text) const {
    const auto size = static_cast<ssize_t>(text.size());
    if (ftruncate(file_, 0) != 0 || pwrite(file_, text.data(), text.size(), 0) != size)
      std::abort();
  }

 private:
  int file_;
};

}  // namespace tessera::fuzz
