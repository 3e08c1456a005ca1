#include "tessera/base/list_files.h"

#include <algorithm>
#include <string>

#include "tessera/base/error.h"

namespace tessera {
namespace fs = std::filesystem;
namespace {

bool leads_outside(const fs::path& link, const fs::path& canonical_folder) {
  std::error_code error;
  const auto target = fs::canonical(link, error);
  if (error) return true;  // dangling
  const auto relative = target.lexically_relative(canonical_folder);
  return relative.empty() || *relative.begin() == "..";
}

}  // namespace

std::vector<fs::path> list_files(const fs::path& folder,
                                 const std::function<bool(const fs::path&)>& wanted) {
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
      if (!wanted(path) || !it->is_regular_file()) continue;
      if (it->is_symlink() && leads_outside(path, root)) continue;
      files.push_back(path);
    }
  } catch (const fs::filesystem_error& error) {
    user_error("{}: cannot be listed: {}", folder.string(), error.code().message());
  }
  sort_by_bytes(files);
  return files;
}

void sort_by_bytes(std::vector<fs::path>& paths) {
  std::ranges::sort(paths, {},
                    [](const fs::path& path) -> const std::string& { return path.native(); });
}

}  // namespace tessera
