// Files: mapped for reading, and written so that nothing half-written stands under a final name.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "tessera/base/error.h"
#include "tessera/base/mapped_files.h"

namespace tessera {

/// There is no such file.
class MissingFile : public UserError {
  using UserError::UserError;
};

/// A whole file mapped read-only. Move-only; unmapped when destroyed.
class MappedFile {
 public:
  /// Throws MissingFile if there is none, UserError if it is unreadable or not a regular file. An
  /// empty file maps to no bytes.
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
  mapped_files::Entry* watched_ = nullptr;  ///< what is told if it is cut (mapped_files.h)
};

/// A file that appears under its final name only at `commit()` (temporary file in the same folder,
/// fsync, rename). Destroyed without commit, the temporary file is removed and the old content of
/// `path` stays. Threads, processes and machines may write one path at once: each has a temporary
/// file of its own (drawn at random, exclusive, no link is followed), and the last commit counts.
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

/// Makes a folder and those above it, if they are missing. Throws SystemError.
void make_folder(const std::filesystem::path& folder);

/// Makes a new folder "PATH.<16 hex digits>.partial" of its own. Throws SystemError.
std::filesystem::path make_temporary_folder(const std::filesystem::path& path);

/// Is something there, a link that leads nowhere included? Throws SystemError if nobody can tell
/// (no right to look, a disk that fails).
bool is_there(const std::filesystem::path& path);

/// Flushes the list of what is in a folder to disk. Throws SystemError.
void flush_folder(const std::filesystem::path& folder);

/// Renames `from` to `to` if nothing stands there. Returns false if something does. Throws
/// SystemError.
bool rename_new(const std::filesystem::path& from, const std::filesystem::path& to);

/// A file (or a device) opened for appending, made if it is missing. Throws UserError if it is a
/// named pipe, which would wait for somebody who reads; SystemError if it cannot be written.
int open_to_append(const std::filesystem::path& path);

/// Writes `content` under `path`, by AtomicFile.
void write_file(const std::filesystem::path& path, std::string_view content);

/// Why no file could be made in `folder`, or "" if one could. Where it does not exist yet, the
/// nearest folder above it is asked. Leaves nothing behind.
std::string why_not_writable(const std::filesystem::path& folder);

/// Opens /dev/null for each of the lowest three numbers that is free (a program started with `<&-`): what is opened
/// next would else be stdin, stdout or stderr to this process and its children. Call it first in main().
void open_standard_files();

/// The whole content of a file; UserError if it cannot be read.
std::string read_file(const std::filesystem::path& path);

}  // namespace tessera
