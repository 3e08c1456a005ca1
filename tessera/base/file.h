// Files: mapped for reading, and written so that nothing half-written stands under a final name.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace tessera {

/// A whole file mapped read-only. Move-only; unmapped when destroyed.
class MappedFile {
 public:
  /// Throws UserError if the file is missing, unreadable or not a regular file. An empty file maps
  /// to no bytes.
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  std::string_view text() const { return {reinterpret_cast<const char*>(data_), size_}; }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

/// A file that appears under its final name only at `commit()` (temporary file in the same folder,
/// fsync, rename). Destroyed without commit, the temporary file is removed and the old content of
/// `path` stays. Threads and processes may write one path at once: the last commit counts.
class AtomicFile {
 public:
  explicit AtomicFile(
      std::filesystem::path path);  ///< throws SystemError if the folder cannot be written
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(std::string_view bytes);  ///< throws SystemError (no space, ...)
  void commit();

 private:
  std::filesystem::path path_, temporary_;
  int fd_ = -1;
};

/// Writes `content` under `path`, by AtomicFile.
void write_file(const std::filesystem::path& path, std::string_view content);

/// Why no file could be made in `folder`, or "" if one could. Where it does not exist yet, the
/// nearest folder above it is asked. Leaves nothing behind.
std::string why_not_writable(const std::filesystem::path& folder);

/// The whole content of a file; UserError if it cannot be read.
std::string read_file(const std::filesystem::path& path);

}  // namespace tessera
