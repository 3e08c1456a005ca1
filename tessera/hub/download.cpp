#include "tessera/hub/download.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string_view>

#include "tessera/base/digest.h"
#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/units.h"
#include "tessera/hub/file_lock.h"
#include "tessera/hub/retries.h"

namespace tessera::hub {
namespace fs = std::filesystem;
namespace {

/// No file whose size the Hub does not tell is nearly as large.
constexpr int64_t kMostWithoutSize = int64_t{64} << 20;

fs::path partial_path(const Cache& cache, const std::string& etag) {
  return cache.blob(etag + ".incomplete");
}

/// The begin of a blob. Bytes are written where they belong, not appended: even two processes at
/// once (locks do not work on every network file system) leave a good file.
class PartialBlob {
 public:
  explicit PartialBlob(fs::path path) : path_(std::move(path)) {
    fd_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (fd_ < 0) system_error(path_.string() + ": cannot be written");
  }
  ~PartialBlob() { ::close(fd_); }
  PartialBlob(const PartialBlob&) = delete;
  PartialBlob& operator=(const PartialBlob&) = delete;

  int64_t size() const {
    struct stat status {};
    if (::fstat(fd_, &status) != 0) system_error(path_.string());
    return status.st_size;
  }

  void clear() {
    if (::ftruncate(fd_, 0) != 0) system_error(path_.string() + ": cannot be written");
  }

  void write_at(int64_t offset, std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t written = ::pwrite(fd_, bytes.data(), bytes.size(), offset);
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) system_error(path_.string() + ": cannot be written");
      bytes.remove_prefix(static_cast<size_t>(written));
      offset += written;
    }
  }

  void commit(const fs::path& path) {
    if (::fsync(fd_) != 0) system_error(path.string() + ": cannot be flushed");
    if (::rename(path_.c_str(), path.c_str()) != 0)
      system_error(path.string() + ": cannot be made");
  }

  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
  int fd_;
};

/// Where the bytes of a response begin.
int64_t first_byte_of(const Response& response) {
  if (response.status == 200) return 0;
  const auto range = response.header("content-range");  // "bytes 5-9/10"
  constexpr std::string_view kUnit = "bytes ";
  if (!range.starts_with(kUnit)) return 0;
  return std::strtoll(range.c_str() + kUnit.size(), nullptr, 10);
}

class Download {
 public:
  Download(Remote& remote, const std::string& commit, const RemoteFile& file, PartialBlob& partial,
           const Settings& settings, const OnBytes& on_bytes)
      : remote_(remote),
        commit_(commit),
        file_(file),
        partial_(partial),
        retries_(settings),
        on_bytes_(on_bytes) {}

  void run() {
    furthest_ = partial_.size();
    while (!is_complete()) {
      try {
        receive();
      } catch (const Unreachable&) {
        retries_.after_failure();
      }
    }
  }

 private:
  bool is_complete() const { return has_ended_ || partial_.size() == file_.size; }

  /// One request for what is missing.
  void receive() {
    if (file_.size >= 0 && partial_.size() > file_.size) partial_.clear();
    const int64_t have = partial_.size();
    int64_t at = -1;
    const auto response = remote_.read(commit_, file_.name, have,
                                       [&](const Response& answer, std::string_view bytes) {
                                         if (at < 0) at = begin(answer, have);
                                         take(at, bytes);
                                         at += static_cast<int64_t>(bytes.size());
                                       });
    if (response.status == 416) partial_.clear();  // not the file that it was
    has_ended_ = file_.size < 0 && response.status != 416;
    if (!is_complete()) {
      throw Unreachable(
          fmt::format("{}: ended after {} of {} bytes", file_.name, partial_.size(), file_.size));
    }
  }

  int64_t begin(const Response& response, int64_t have) {
    const int64_t first = first_byte_of(response);
    if (first == have) return have;
    partial_.clear();
    if (first != 0) throw Unreachable(file_.name + ": another range came than was asked for");
    return 0;
  }

  void take(int64_t at, std::string_view bytes) {
    const int64_t end = at + static_cast<int64_t>(bytes.size());
    if (file_.size >= 0 && end > file_.size) {
      user_error("{}: the server sends more than the {} bytes that it announced; check HF_ENDPOINT",
                 file_.name, file_.size);
    }
    if (file_.size < 0 && end > kMostWithoutSize) {
      partial_.clear();
      user_error("{}: the server tells no size for it and sends more than {}; check HF_ENDPOINT",
                 file_.name, format_bytes(kMostWithoutSize));
    }
    partial_.write_at(at, bytes);
    if (end > furthest_) retries_.after_success();
    furthest_ = std::max(furthest_, end);
    on_bytes_(end);
  }

  Remote& remote_;
  const std::string& commit_;
  const RemoteFile& file_;
  PartialBlob& partial_;
  Retries retries_;
  const OnBytes& on_bytes_;
  int64_t furthest_ = 0;
  bool has_ended_ = false;  ///< of a file whose size nobody told
};

/// The Hub names large files by their SHA-256, small ones as Git does.
enum class Naming { sha256, git, unknown };

Naming naming_of(const std::string& etag) {
  const bool digits = std::ranges::all_of(
      etag, [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
  constexpr size_t kSha256Digits = 64, kGitDigits = 40;
  if (digits && etag.size() == kSha256Digits) return Naming::sha256;
  return digits && etag.size() == kGitDigits ? Naming::git : Naming::unknown;
}

void check_content(const RemoteFile& file, const fs::path& path) {
  const auto naming = naming_of(file.etag);
  if (naming == Naming::unknown) return;
  const MappedFile content(path);
  const auto found =
      naming == Naming::sha256 ? sha256(content.text()) : git_blob_name(content.text());
  if (found == file.etag) return;
  fs::remove(path);
  user_error("{}: expected content with {} {}, got {}; it is deleted: run again", file.name,
             naming == Naming::sha256 ? "SHA-256" : "Git's name", file.etag, found);
}

}  // namespace

void download_blob(Remote& remote, const Cache& cache, const std::string& commit,
                   const RemoteFile& file, const Settings& settings, const OnBytes& on_bytes) {
  const auto blob = cache.blob(file.etag), partial = partial_path(cache, file.etag);
  if (fs::exists(blob)) return;
  if (file.size < 0 && naming_of(file.etag) == Naming::unknown) {
    user_error(
        "{}: the server tells neither its size nor its hash, so that a cut file would pass for "
        "whole; check HF_ENDPOINT",
        file.name);
  }
  make_folder(blob.parent_path());
  make_folder(cache.lock(file.etag).parent_path());
  const FileLock lock(cache.lock(file.etag), partial, settings);
  if (fs::exists(blob)) return;  // another process was first
  PartialBlob incomplete(partial);
  Download(remote, commit, file, incomplete, settings, on_bytes).run();
  check_content(file, incomplete.path());
  incomplete.commit(blob);
}

int64_t missing_bytes(const Cache& cache, const RemoteFile& file) {
  if (fs::exists(cache.blob(file.etag))) return 0;
  std::error_code error;
  const auto have = fs::file_size(partial_path(cache, file.etag), error);
  return std::max(int64_t{0}, file.size - (error ? 0 : static_cast<int64_t>(have)));
}

}  // namespace tessera::hub
