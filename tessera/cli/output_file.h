// A file that a command is asked to write.
#pragma once

#include <filesystem>

#include "tessera/base/error.h"
#include "tessera/base/file.h"

namespace tessera::cli {

/// UserError if `file` is a folder or cannot be made, with `advice` ("set --config_file") at its
/// end. Folders above it need not exist yet: whoever writes makes them.
inline void check_output(const std::filesystem::path& file, const char* advice) {
  if (std::filesystem::is_directory(file)) {
    user_error("{}: expected a file, got a folder; {}", file.string(), advice);
  }
  const auto folder = file.has_parent_path() ? file.parent_path() : std::filesystem::path(".");
  const auto reason = why_not_writable(folder);
  if (reason.empty()) return;
  user_error("{}: cannot be written: {}; {}", file.string(), reason, advice);
}

/// Writes `content` to `file`, and makes the folders above it.
inline void write_output(const std::filesystem::path& file, std::string_view content) {
  if (file.has_parent_path()) std::filesystem::create_directories(file.parent_path());
  write_file(file, content);
}

}  // namespace tessera::cli
