#include "tessera/records/file_type.h"

#include <fnmatch.h>

#include <algorithm>
#include <array>
#include <span>
#include <string_view>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/letters.h"
#include "tessera/base/list_files.h"

namespace tessera::records {
namespace fs = std::filesystem;
namespace {

constexpr std::array<std::pair<std::string_view, Format>, 6> kExtensions{
    {{".jsonl", Format::json_lines},
     {".ndjson", Format::json_lines},
     {".json", Format::json},
     {".csv", Format::csv},
     {".tsv", Format::tsv},
     {".parquet", Format::parquet}}};

bool has_wildcard(std::string_view text) { return text.find_first_of("*?[") != text.npos; }

/// What is in a folder, or nothing if it cannot be read: a pattern matches what can be seen.
std::vector<fs::directory_entry> entries_of(const fs::path& folder) {
  std::error_code error;
  std::vector<fs::directory_entry> entries;
  fs::directory_iterator it(folder.empty() ? "." : folder, error);
  for (; !error && it != fs::directory_iterator(); it.increment(error)) entries.push_back(*it);
  return entries;
}

/// Adds the files below `folder` that match the names of a pattern, one after the other.
void add_matches(const fs::path& folder, std::span<const fs::path> names,
                 std::vector<fs::path>& found) {
  std::error_code error;
  const auto rest = names.subspan(1);
  if (names.front() == "**") {
    if (!rest.empty()) add_matches(folder, rest, found);
    for (const auto& entry : entries_of(folder)) {
      const auto name = entry.path().filename();
      if (name.native().starts_with('.')) continue;
      if (entry.is_directory(error) && !entry.is_symlink(error)) {
        add_matches(folder / name, names, found);
      } else if (rest.empty() && entry.is_regular_file(error)) {
        found.push_back(folder / name);
      }
    }
    return;
  }
  const auto go_on = [&](const fs::path& path) {
    if (!rest.empty()) {
      if (fs::is_directory(path, error)) add_matches(path, rest, found);
    } else if (fs::is_regular_file(path, error)) {
      found.push_back(path);
    }
  };
  if (!has_wildcard(names.front().native())) return go_on(folder / names.front());
  for (const auto& entry : entries_of(folder)) {
    const auto name = entry.path().filename();
    if (::fnmatch(names.front().c_str(), name.c_str(), FNM_PERIOD) == 0) go_on(folder / name);
  }
}

std::vector<fs::path> matching_files(const fs::path& pattern) {
  const auto below = pattern.relative_path();
  // `**/**` is `**`: each more would find every file once more.
  std::vector<fs::path> names;
  for (const auto& name : below) {
    if (name.empty() || (name == "**" && !names.empty() && names.back() == "**")) continue;
    names.push_back(name);
  }
  std::vector<fs::path> found;
  add_matches(pattern.root_path(), names, found);
  sort_by_bytes(found);
  found.erase(std::unique(found.begin(), found.end()), found.end());
  return found;
}

}  // namespace

std::optional<FileType> type_by_name(const fs::path& path) {
  auto name = lower_case(path.filename().string());
  FileType type;
  if (name.ends_with(".gz")) type.compression = Compression::gzip;
  if (name.ends_with(".zst")) type.compression = Compression::zstd;
  if (type.compression != Compression::none) name.resize(name.rfind('.'));
  for (const auto& [extension, format] : kExtensions) {
    if (!name.ends_with(extension)) continue;
    // Parquet is compressed within.
    if (format == Format::parquet && type.compression != Compression::none) return std::nullopt;
    type.format = format;
    return type;
  }
  return std::nullopt;
}

std::vector<DataFile> find_files(const std::string& path) {
  std::error_code error;
  const auto is_known = [](const fs::path& file) { return type_by_name(file).has_value(); };
  std::vector<fs::path> files;
  if (fs::is_directory(path, error)) {
    files = list_files(path, is_known);
    if (files.empty())
      user_error("{}: expected files that end in {}, got none of them", path, kKnownTypes);
  } else if (fs::exists(path, error)) {
    if (!is_known(path))
      user_error("{}: expected a name that ends in {}; rename it as what it holds", path,
                 kKnownTypes);
    files = {path};
  } else if (has_wildcard(path)) {
    files = matching_files(path);
    const auto num_matches = files.size();
    std::erase_if(files, [&](const fs::path& file) { return !is_known(file); });
    if (files.empty())
      user_error("{}: expected a pattern of files that end in {}, got {}", path, kKnownTypes,
                 num_matches == 0 ? "no match" : "matches of other types alone");
  } else {
    user_error("{}: no such file or folder", path);
  }
  std::vector<DataFile> found;
  for (auto& file : files) found.push_back({file, *type_by_name(file)});
  return found;
}

}  // namespace tessera::records
