#include "tessera/data/text_files.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/base/list_files.h"

namespace tessera::data {
namespace fs = std::filesystem;
namespace {

bool has_extension(const fs::path& path, std::span<const std::string> extensions) {
  if (extensions.empty()) return true;
  const std::string own = path.extension().string();
  return std::ranges::any_of(extensions, [&](const std::string& wanted) {
    return wanted.starts_with('.') ? own == wanted : own == "." + wanted;
  });
}

}  // namespace

std::vector<fs::path> list_folder(const fs::path& folder, std::span<const std::string> extensions) {
  auto files =
      list_files(folder, [&](const fs::path& path) { return has_extension(path, extensions); });
  if (files.empty()) {
    user_error(
        "{}: expected files{}, got none; set extensions", folder.string(),
        extensions.empty() ? "" : fmt::format(" that end in {}", fmt::join(extensions, " or ")));
  }
  return files;
}

std::vector<fs::path> list_text(const fs::path& path, std::span<const std::string> extensions) {
  if (!fs::exists(path)) user_error("{}: no such file or folder", path.string());
  if (fs::is_directory(path)) return list_folder(path, extensions);
  return {path};
}

}  // namespace tessera::data
