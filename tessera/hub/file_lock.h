// One process at a time.
#pragma once

#include <filesystem>

#include "tessera/hub/settings.h"

namespace tessera::hub {

/// Holds an flock on `path` (made if missing) while it lives, as Hugging Face's library does. Waits
/// while another holder lets `watched` grow, and `lock_seconds` more; then UserError. Where the
/// file system has no locks it holds nothing.
class FileLock {
 public:
  FileLock(const std::filesystem::path& path, const std::filesystem::path& watched,
           const Settings& settings);
  ~FileLock();
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

 private:
  int fd_ = -1;
};

}  // namespace tessera::hub
