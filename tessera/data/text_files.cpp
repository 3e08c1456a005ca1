#include "tessera/data/text_files.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "tessera/base/error.h"

namespace tessera::data {
namespace fs = std::filesystem;
namespace {

bool leads_outside(const fs::path& link, const fs::path& canonical_folder) {
  std::error_code error;
  const auto target = fs::canonical(link, error);
  if (error) return true;  // dangling
  const auto relative = target.lexically_relative(canonical_folder);
  return relative.empty() || *relative.begin() == "..";
}

bool has_extension(const fs::path& path, std::span<const std::string> extensions) {
  if (extensions.empty()) return true;
  const std::string own = path.extension().string();
  return std::ranges::any_of(extensions, [&](const std::string& wanted) {
    return wanted.starts_with('.') ? own == wanted : own == "." + wanted;
  });
}

}  // namespace

std::vector<fs::path> list_folder(const fs::path& folder, std::span<const std::string> extensions) {
  std::vector<fs::path> files;
  try {
    const auto root = fs::canonical(folder);
    for (auto it = fs::recursive_directory_iterator(folder);
         it != fs::recursive_directory_iterator(); ++it) {
      const auto& path = it->path();
      if (path.filename().native().starts_with('.')) {
        it.disable_recursion_pending();
        continue;
      }
      if (!has_extension(path, extensions) || !it->is_regular_file()) continue;
      if (it->is_symlink() && leads_outside(path, root)) continue;
      files.push_back(path);
    }
  } catch (const fs::filesystem_error& error) {
    user_error("{}: cannot be listed: {}", folder.string(), error.code().message());
  }
  if (files.empty()) {
    user_error(
        "{}: expected files{}, got none; set extensions", folder.string(),
        extensions.empty() ? "" : fmt::format(" that end in {}", fmt::join(extensions, " or ")));
  }
  std::ranges::sort(files, {},
                    [](const fs::path& path) -> const std::string& { return path.native(); });
  return files;
}

std::vector<fs::path> list_text(const fs::path& path, std::span<const std::string> extensions) {
  if (!fs::exists(path)) user_error("{}: no such file or folder", path.string());
  if (fs::is_directory(path)) return list_folder(path, extensions);
  return {path};
}

}  // namespace tessera::data
