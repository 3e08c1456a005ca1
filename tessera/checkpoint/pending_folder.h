// Folders that appear under their name when they are whole.
#pragma once

#include <filesystem>

namespace tessera::checkpoint {

/// A new folder, written under another name beside its own until commit(). Destroyed without
/// commit, it is removed.
class PendingFolder {
 public:
  /// Makes the folders above it, too. UserError: it exists. SystemError: not writable.
  explicit PendingFolder(std::filesystem::path path);
  ~PendingFolder();
  PendingFolder(const PendingFolder&) = delete;
  PendingFolder& operator=(const PendingFolder&) = delete;

  const std::filesystem::path& path() const { return pending_; }  ///< where to write into it

  void commit();

 private:
  std::filesystem::path path_, pending_;
};

/// UserError if something stands at `path`, which is to be written.
void refuse_existing(const std::filesystem::path& path);

}  // namespace tessera::checkpoint
