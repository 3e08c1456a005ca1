#include "tessera/checkpoint/block_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <future>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/checkpoint/damage.h"

namespace tessera::checkpoint {
namespace fs = std::filesystem;
namespace {

// One read at a time leaves most disks idle in between; 64 MiB of buffers in all.
constexpr size_t kReadsInFlight = 7;

/// Closes what it opened.
class File {
 public:
  File(const fs::path& path, int flags) : path_(path) {
    fd_ = ::open(path.c_str(), flags | O_CLOEXEC, 0644);
    // Asked for afterwards: an open() that is refused for it (memory file systems, some network
    // ones) has already made the file.
    if (fd_ >= 0) ::fcntl(fd_, F_SETFL, O_DIRECT);
  }
  ~File() {
    if (fd_ >= 0) ::close(fd_);
  }
  File(File&& other) noexcept : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)) {}
  File& operator=(File&&) = delete;

  int fd() const { return fd_; }
  [[noreturn]] void fail(const char* what) const { system_error(path_.string() + ": " + what); }

  void write_all(std::span<const std::byte> bytes, int64_t offset) const {
    while (!bytes.empty()) {
      const ssize_t done = ::pwrite(fd_, bytes.data(), bytes.size(), offset);
      if (done < 0 && errno == EINTR) continue;
      if (done < 0 && errno == EINVAL && use_page_cache()) continue;
      if (done < 0) fail("cannot be written");
      bytes = bytes.subspan(static_cast<size_t>(done));
      offset += done;
      if (offset % kPageBytes != 0)
        use_page_cache();  // a short write: the rest begins inside a page
    }
  }

  /// Reads as much of `bytes` as the file has from `offset` on; returns how much.
  size_t read_some(std::span<std::byte> bytes, int64_t offset) const {
    size_t total = 0;
    while (total < bytes.size()) {
      const ssize_t done = ::pread(fd_, bytes.data() + total, bytes.size() - total,
                                   offset + static_cast<int64_t>(total));
      if (done < 0 && errno == EINTR) continue;
      if (done < 0 && errno == EINVAL && use_page_cache()) continue;
      if (done < 0) fail("cannot be read");
      if (done == 0) break;
      total += static_cast<size_t>(done);
      if (total % kPageBytes != 0) use_page_cache();
    }
    return total;
  }

 private:
  bool use_page_cache() const {
    const int flags = ::fcntl(fd_, F_GETFL);
    return (flags & O_DIRECT) != 0 && ::fcntl(fd_, F_SETFL, flags & ~O_DIRECT) == 0;
  }

  fs::path path_;
  int fd_ = -1;
};

/// Opens a file of the checkpoint, which is no link and has the right size.
File open_checked(const fs::path& folder, const IndexedFile& file) {
  const auto path = folder / file.name;
  File opened(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
  if (opened.fd() < 0) {
    if (errno == ENOENT) damaged("{}: missing from the checkpoint", path.string());
    if (errno == ELOOP) {
      damaged("{}: a symbolic link; expected a file of the checkpoint", path.string());
    }
    opened.fail("cannot be opened");
  }
  struct stat status {};
  if (::fstat(opened.fd(), &status) != 0 || !S_ISREG(status.st_mode)) {
    damaged("{}: expected a regular file", path.string());
  }
  if (status.st_size != file.num_bytes) {
    damaged("{}: {}: expected {} bytes, got {}", path.string(),
            status.st_size < file.num_bytes ? "truncated" : "too long", file.num_bytes,
            status.st_size);
  }
  return opened;
}

void check_blocks(const fs::path& path, const IndexedFile& file, int64_t offset,
                  std::span<const std::byte> bytes) {
  std::vector<Checksum> found;
  append_checksums(bytes, found);
  const auto first = static_cast<size_t>(offset / kBlockBytes);
  for (size_t i = 0; i < found.size(); ++i) {
    if (found[i] == file.checksums[first + i]) continue;
    const int64_t begin = static_cast<int64_t>(first + i) * kBlockBytes;
    damaged("{}: damaged: bytes {} to {} have another checksum than when they were written",
            path.string(), begin, std::min(begin + kBlockBytes, file.num_bytes) - 1);
  }
}

/// `wanted` cut into parts.
std::vector<BlockRange> cut(std::span<const BlockRange> wanted) {
  std::vector<BlockRange> parts;
  for (const auto& range : wanted) {
    for (int64_t begin = range.begin; begin < range.end; begin += kPartBytes) {
      parts.push_back({begin, std::min(begin + kPartBytes, range.end)});
    }
  }
  return parts;
}

}  // namespace

std::vector<Checksum> write_parts(const fs::path& path, int64_t num_bytes,
                                  const PartSource& source) {
  const File file(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW);
  if (file.fd() < 0) file.fail("cannot be written");
  // A full disk shows now, not after minutes. Where the file system cannot, it shows later.
  if (num_bytes > 0 && ::fallocate(file.fd(), 0, 0, num_bytes) != 0 && errno == ENOSPC) {
    file.fail("cannot be written");
  }
  std::vector<Checksum> checksums;
  const PageBuffer scratch[] = {PageBuffer(std::min(num_bytes, kPartBytes)),
                                PageBuffer(std::min(num_bytes, kPartBytes))};
  std::future<void> writing;
  for (int64_t offset = 0, i = 0; offset < num_bytes; offset += kPartBytes, ++i) {
    const int64_t size = std::min(kPartBytes, num_bytes - offset);
    const auto room = scratch[i % 2].bytes().first(static_cast<size_t>(size));
    const auto part = source(offset, room);
    append_checksums(part, checksums);
    if (writing.valid()) writing.get();
    writing = std::async(std::launch::async, [&file, part, offset] {
      // Whole pages: the end is cut off again below.
      file.write_all({part.data(), static_cast<size_t>(whole_pages(std::ssize(part)))}, offset);
    });
  }
  if (writing.valid()) writing.get();
  if (::ftruncate(file.fd(), num_bytes) != 0) file.fail("cannot be cut to its size");
  if (::fsync(file.fd()) != 0) file.fail("cannot be flushed");
  return checksums;
}

void read_parts(const fs::path& folder, const IndexedFile& file, std::span<const BlockRange> wanted,
                const std::function<void(int64_t, std::span<const std::byte>)>& use) {
  const auto opened = open_checked(folder, file);
  const auto path = folder / file.name;
  const auto parts = cut(wanted);
  PageBuffer buffers[kReadsInFlight + 1];
  const auto buffer_of = [&](size_t i) -> PageBuffer& { return buffers[i % std::size(buffers)]; };
  const auto read = [&](size_t i) {
    const auto& [begin, end] = parts[i];
    auto& buffer = buffer_of(i);
    if (std::ssize(buffer.bytes()) < end - begin) buffer = PageBuffer(end - begin);
    // Direct reading wants whole pages, beyond the end, too.
    const auto room = buffer.bytes().first(static_cast<size_t>(whole_pages(end - begin)));
    if (static_cast<int64_t>(opened.read_some(room, begin)) < end - begin) {
      damaged("{}: truncated while it was read", path.string());
    }
  };
  std::deque<std::future<void>> reading;  // of the parts that follow
  size_t next = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    for (; next < parts.size() && next <= i + kReadsInFlight; ++next) {
      reading.push_back(std::async(std::launch::async, read, next));
    }
    reading.front().get();
    reading.pop_front();
    const auto& [begin, end] = parts[i];
    const auto bytes = buffer_of(i).bytes().first(static_cast<size_t>(end - begin));
    check_blocks(path, file, begin, bytes);
    use(begin, bytes);
  }
}

void check_size(const fs::path& folder, const IndexedFile& file) { open_checked(folder, file); }

}  // namespace tessera::checkpoint
