// Which files of a folder are data, in an order that is the same on every machine.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace tessera::data {

/// What list_files() (base/list_files.h) finds below `folder`: all, or the files with one of
/// `extensions` (".h" or "h"; letters as written).
/// UserError: not a folder, unreadable, or no file is left.
std::vector<std::filesystem::path> list_folder(const std::filesystem::path& folder,
                                               std::span<const std::string> extensions);

/// `path` itself if it is a file, list_folder() otherwise. UserError if there is nothing.
std::vector<std::filesystem::path> list_text(const std::filesystem::path& path,
                                             std::span<const std::string> extensions);

}  // namespace tessera::data
