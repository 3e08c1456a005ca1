// Which files of a folder are data, in an order that is the same on every machine.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace tessera::data {

/// The regular files below `folder`, sorted by the bytes of their path. Left out: names that begin
/// with a dot and all below them, links to folders, links to files outside `folder`, and, unless
/// `extensions` is empty, files with another extension (".h" or "h"; letters as written).
/// UserError: not a folder, unreadable, or no file is left.
std::vector<std::filesystem::path> list_folder(const std::filesystem::path& folder,
                                               std::span<const std::string> extensions);

/// `path` itself if it is a file, list_folder() otherwise. UserError if there is nothing.
std::vector<std::filesystem::path> list_text(const std::filesystem::path& path,
                                             std::span<const std::string> extensions);

}  // namespace tessera::data
