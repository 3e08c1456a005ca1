#include "tessera/hub/push_files.h"

#include <algorithm>
#include <array>
#include <set>
#include <string_view>

#include "tessera/base/error.h"
#include "tessera/base/list_files.h"
#include "tessera/base/text.h"
#include "tessera/base/utf8.h"

namespace tessera::hub {
namespace fs = std::filesystem;
namespace {

/// Ends of names that no finished file has: locks of runs, files that are being written
/// (base/file.h) or downloaded (hub/download.h).
constexpr std::array<std::string_view, 4> kUnfinished = {".lock", ".partial", ".incomplete",
                                                         ".tmp"};

/// Is a part of the relative path of a half-written folder or file?
bool is_unfinished(const fs::path& relative) {
  return std::ranges::any_of(relative, [](const fs::path& part) {
    return std::ranges::any_of(kUnfinished, [&](auto end) { return part.native().ends_with(end); });
  });
}

}  // namespace

PushFiles files_to_push(const fs::path& folder) {
  if (!fs::is_directory(folder)) user_error("{}: expected a folder to push", folder.string());
  PushFiles found;
  const auto name_of = [&](const fs::path& path) {
    return path.lexically_relative(folder).generic_string();
  };
  std::set<std::string> names;
  for (const auto& path : list_files(folder, [](const fs::path&) { return true; })) {
    const auto name = name_of(path);
    if (is_unfinished(name)) continue;
    if (!is_utf8(name)) user_error("{}: expected a name in UTF-8; rename it", printable(name));
    found.files.push_back({path, name});
    names.insert(name);
  }
  for (auto it = fs::recursive_directory_iterator(folder); it != fs::recursive_directory_iterator();
       ++it) {
    const auto name = name_of(it->path());
    const bool is_hidden = it->path().filename().native().starts_with('.');
    if (is_hidden) it.disable_recursion_pending();
    if (is_hidden || (!names.contains(name) && (!it->is_directory() || it->is_symlink())))
      found.left_out.push_back(name);
  }
  std::ranges::sort(found.left_out);
  if (found.files.empty()) user_error("{}: nothing to push in it", folder.string());
  return found;
}

}  // namespace tessera::hub
