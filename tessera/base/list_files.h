// What is below a folder, in an order that is the same on every machine.
#pragma once

#include <filesystem>
#include <functional>
#include <vector>

namespace tessera {

/// The regular files below `folder` that are `wanted`, sorted by the bytes of their path. Left out:
/// names that begin with a dot and all below them, links to folders, links to files outside
/// `folder`. UserError: not a folder, or unreadable.
std::vector<std::filesystem::path> list_files(
    const std::filesystem::path& folder,
    const std::function<bool(const std::filesystem::path&)>& wanted);

/// Sorts paths by their bytes, as list_files() does.
void sort_by_bytes(std::vector<std::filesystem::path>& paths);

}  // namespace tessera
