#include "tessera/offload/scratch_file.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/page_buffer.h"
#include "tessera/base/units.h"

namespace tessera::offload {
namespace {

struct FileSystem {
  long magic;
  const char* what;
};
// Those that linux/magic.h lacks: statfs(2).
constexpr std::array kNoDrives{
    FileSystem{TMPFS_MAGIC, "memory (tmpfs)"},      FileSystem{RAMFS_MAGIC, "memory (ramfs)"},
    FileSystem{NFS_SUPER_MAGIC, "a network (nfs)"}, FileSystem{0x517B, "a network (smb)"},
    FileSystem{0xFF534D42, "a network (cifs)"},     FileSystem{0xFE534D42, "a network (smb2)"},
    FileSystem{0x00C36400, "a network (ceph)"},     FileSystem{0x0BD00BD0, "a network (lustre)"},
    FileSystem{0x47504653, "a network (gpfs)"}};

constexpr mode_t kOwnerOnly = 0600;

}  // namespace

std::string why_no_drive(const std::filesystem::path& folder) {
  struct statfs found {};
  if (::statfs(folder.c_str(), &found) != 0) system_error(folder.string());
  for (const auto& [magic, what] : kNoDrives) {
    if (static_cast<uint32_t>(found.f_type) == static_cast<uint32_t>(magic)) return what;
  }
  return "";
}

ScratchFile::ScratchFile(const std::filesystem::path& folder, int64_t bytes, bool any_file_system)
    : folder_(folder) {
  if (folder.empty()) user_error("paths: expected a folder, got an empty name");
  if (const auto why = why_not_writable(folder); !why.empty()) {
    user_error("paths: {}: expected a folder that can be written: {}", folder.string(), why);
  }
  make_folder(folder);
  if (const auto what = why_no_drive(folder); !what.empty() && !any_file_system) {
    user_error(
        "paths: {}: expected a folder on a drive, this one is on {}; choose another, or "
        "set any_file_system to true",
        folder.string(), what);
  }
  open();
  try {
    grow(bytes);
    make_direct();
  } catch (const std::runtime_error&) {
    ::close(fd_);
    throw;
  }
}

ScratchFile::~ScratchFile() {
  if (fd_ >= 0) ::close(fd_);
}

ScratchFile::ScratchFile(ScratchFile&& other) noexcept
    : folder_(std::move(other.folder_)),
      bytes_(other.bytes_),
      fd_(std::exchange(other.fd_, -1)),
      direct_(other.direct_) {}

void ScratchFile::open() {
  fd_ = ::open(folder_.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC | O_EXCL, kOwnerOnly);
  if (fd_ >= 0) return;
  if (errno != EOPNOTSUPP && errno != EISDIR) system_error(folder_.string());
  // A file system without O_TMPFILE: it has a name for a moment.
  auto name = (folder_ / "tessera-offload.XXXXXX").string();
  fd_ = ::mkostemp(name.data(), O_CLOEXEC);
  if (fd_ < 0) system_error(name);
  if (::unlink(name.c_str()) != 0) {
    ::close(fd_);
    system_error(name);
  }
}

void ScratchFile::grow(int64_t bytes) {
  if (bytes <= bytes_) return;
  struct statvfs room {};  // before some of it is taken
  const bool known = ::fstatvfs(fd_, &room) == 0;
  if (::fallocate(fd_, 0, bytes_, bytes - bytes_) != 0) {
    if (errno == EFBIG) {
      user_error(
          "paths: {}: needs a file of {}, more than this process or the file system may have; "
          "raise the limit (ulimit -f), or name another drive",
          folder_.string(), format_bytes(bytes));
    }
    if (errno == ENOSPC || errno == EDQUOT) {
      user_error(
          "paths: {}: needs {}, free {}; make room, or name another drive", folder_.string(),
          format_bytes(bytes - bytes_),
          known ? format_bytes(static_cast<int64_t>(room.f_bavail * room.f_frsize)) : "unknown");
    }
    if (errno != EOPNOTSUPP || ::ftruncate(fd_, bytes) != 0) system_error(folder_.string());
  }
  bytes_ = bytes;
}

/// Some file systems take the flag and refuse the first read or write.
void ScratchFile::make_direct() {
  const int flags = ::fcntl(fd_, F_GETFL);
  if (::fcntl(fd_, F_SETFL, flags | O_DIRECT) != 0) return;
  const PageBuffer page(kPageBytes);
  if (::pwrite(fd_, page.bytes().data(), kPageBytes, 0) == kPageBytes &&
      ::pread(fd_, page.bytes().data(), kPageBytes, 0) == kPageBytes) {
    direct_ = true;
  } else if (errno != EINVAL || ::fcntl(fd_, F_SETFL, flags) != 0) {
    system_error(folder_.string());
  }
}

}  // namespace tessera::offload
