// A file of the process's own on a drive that it names, gone with the process.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace tessera::offload {

/// A preallocated file without a name: the kernel frees its room when the process ends, however it
/// does (SIGKILL included), so nothing is left behind. Read and written past the page cache where
/// the file system lets it. Move-only.
class ScratchFile {
 public:
  /// `bytes`: a multiple of kPageBytes. Makes `folder` if it is missing. UserError: the folder cannot
  /// be written, has no room (needed beside free), or (unless `any_file_system`) lies in memory or
  /// on a network. SystemError: the disk.
  ScratchFile(const std::filesystem::path& folder, int64_t bytes, bool any_file_system);
  ~ScratchFile();
  ScratchFile(ScratchFile&& other) noexcept;
  ScratchFile& operator=(ScratchFile&&) = delete;

  /// Reserves as many in all. UserError: no room (needed beside free). SystemError: the disk.
  void grow(int64_t bytes);

  int fd() const { return fd_; }
  bool is_direct() const { return direct_; }  ///< past the page cache
  const std::filesystem::path& folder() const { return folder_; }

 private:
  void open();
  void make_direct();

  std::filesystem::path folder_;
  int64_t bytes_ = 0;  // reserved
  int fd_ = -1;
  bool direct_ = false;
};

/// What a folder lies on where a scratch file is of no use: "memory (tmpfs)", "a network (nfs)"; ""
/// elsewhere. SystemError: it cannot be looked at.
std::string why_no_drive(const std::filesystem::path& folder);

}  // namespace tessera::offload
