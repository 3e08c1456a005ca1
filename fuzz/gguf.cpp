#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <vector>

#include "fuzz/target.h"
#include "tessera/checkpoint/formats/gguf/file.h"

namespace {

/// A file in memory, as the reader maps one.
class FileInMemory {
 public:
  explicit FileInMemory(std::string_view bytes) : fd_(::memfd_create("gguf", 0)) {
    if (::write(fd_, bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size()))
      std::abort();
  }
  ~FileInMemory() { ::close(fd_); }
  FileInMemory(const FileInMemory&) = delete;
  FileInMemory& operator=(const FileInMemory&) = delete;
  std::string path() const { return "/proc/self/fd/" + std::to_string(fd_); }

 private:
  int fd_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return tessera::fuzz::run(data, size, [](std::string_view bytes) {
    const FileInMemory file(bytes);
    const tessera::checkpoint::GgufSource source(file.path());
    for (const auto& [name, info] : source.tensors()) {
      constexpr int64_t kMost = 600;  // a block of the largest, the next, and a part of one
      const int64_t count = std::min(info.num_elements(), kMost);
      std::vector<std::byte> values(
          static_cast<size_t>(count * tessera::checkpoint::dtype_bytes(info.dtype)));
      source.read(name, info.num_elements() - count, values);
    }
  });
}
