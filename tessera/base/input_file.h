// A regular file, read part by part.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

namespace tessera {

/// A file opened for reading. Move-only; closed when destroyed.
class InputFile {
 public:
  /// Throws MissingFile (base/file.h) if there is none, UserError if it is unreadable or not a
  /// regular file.
  explicit InputFile(const std::filesystem::path& path);
  ~InputFile();
  InputFile(InputFile&& other) noexcept;
  InputFile& operator=(InputFile&& other) noexcept;
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  /// The next bytes, as many as `to` takes or there are; 0: the end. SystemError: the disk fails.
  size_t read(std::span<char> to);
  /// The bytes from `offset`, which must be within the size. UserError if they are gone.
  void read_at(uint64_t offset, std::span<char> to) const;
  /// UserError if the file has been written to since it was opened.
  void check_unchanged() const;

  const std::filesystem::path& path() const { return path_; }
  size_t size() const { return size_; }  ///< when it was opened
  int descriptor() const { return fd_; }

 private:
  std::filesystem::path path_;
  int fd_ = -1;
  size_t size_ = 0;
  int64_t changed_ns_ = 0;  ///< when it was last written to, on opening
};

}  // namespace tessera
