// Bytes to files.
#pragma once

#include <filesystem>
#include <string_view>

namespace tessera::report {

/// Writes all of `bytes`, going on after interruptions and short writes. Returns false on an error,
/// with errno set.
bool write_all(int fd, std::string_view bytes);

/// Appends `text` to a file, which is made if it is missing. Throws SystemError.
void append_to_file(const std::filesystem::path& path, std::string_view text);

/// Makes a folder and those above it, if they are missing. Throws SystemError.
void make_folder(const std::filesystem::path& folder);

}  // namespace tessera::report
