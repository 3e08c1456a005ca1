#include "tessera/hub/resolve_data.h"

#include <algorithm>
#include <filesystem>
#include <optional>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/hub/cache.h"
#include "tessera/hub/dataset_files.h"
#include "tessera/hub/http.h"
#include "tessera/hub/repository_name.h"
#include "tessera/records/file_type.h"

namespace tessera::hub {
namespace fs = std::filesystem;
namespace {

/// An entry in its parts.
struct DataEntry {
  std::string source;  ///< a folder, or a name with its revision
  std::string end;     ///< ":config/split", or ""
  SplitName wanted;
};

std::optional<DataEntry> parts_of(const std::string& entry) {
  const auto colon = entry.rfind(':');
  DataEntry parts{.source = entry.substr(0, colon), .end = "", .wanted = {}};
  if (colon == std::string::npos) return parts;
  parts.end = entry.substr(colon);
  const auto slash = entry.find('/', colon);
  if (slash != std::string::npos) parts.wanted.config = entry.substr(colon + 1, slash - colon - 1);
  parts.wanted.split = entry.substr(slash == std::string::npos ? colon + 1 : slash + 1);
  const bool is_whole = !parts.wanted.split.empty() &&
                        parts.wanted.split.find('/') == std::string::npos &&
                        (slash == std::string::npos || !parts.wanted.config.empty());
  return is_whole ? std::optional(parts) : std::nullopt;
}

/// Files below a folder, links among them, but no hidden ones.
std::vector<std::string> names_below(const fs::path& folder) {
  std::vector<std::string> names;
  for (auto it = fs::recursive_directory_iterator(folder); it != fs::recursive_directory_iterator();
       ++it) {
    if (it->path().filename().native().starts_with('.')) {
      it.disable_recursion_pending();
    } else if (it->is_regular_file()) {
      names.push_back(it->path().lexically_relative(folder).generic_string());
    }
  }
  return names;
}

std::string card_of(const fs::path& folder) {
  return fs::exists(folder / kCard) ? read_file(folder / kCard) : "";
}

std::vector<std::string> within(const fs::path& folder, const std::vector<std::string>& names) {
  std::vector<std::string> paths;
  for (const auto& name : names) paths.push_back((folder / name).string());
  return paths;
}

/// The files of a folder, as it is.
std::vector<std::string> files_of_folder(const fs::path& folder, const DataEntry& entry,
                                         const std::string& who) {
  return within(folder, split_files(names_below(folder), card_of(folder), entry.wanted, who));
}

ResolvedData cached_data(const RepositoryName& name, const DataEntry& entry,
                         const Settings& settings, const std::string& why) {
  const Cache cache(settings.cache, name);
  const auto commit = cache.commit_of(name.revision);
  if (!commit || !fs::is_directory(cache.snapshot(*commit))) {
    user_error("{}: no such file or folder, not in the cache {}, and {}{}", name.text(),
               settings.cache.string(), why, cached_hint(settings.cache, name));
  }
  return {.paths = files_of_folder(cache.snapshot(*commit), entry, name.text() + entry.end),
          .pinned = name.repository + "@" + *commit + entry.end};
}

ResolvedData downloaded_data(const RepositoryName& name, const DataEntry& entry,
                             const ResolveOptions& options) {
  std::vector<std::string> all;
  const auto only_card = [&](const std::vector<std::string>& names) {
    all = names;
    const bool has_card = std::ranges::find(names, kCard) != names.end();
    return has_card ? std::vector<std::string>{kCard} : std::vector<std::string>();
  };
  const auto folder = download_snapshot(name, options.settings, only_card, {});
  RepositoryName pinned = name;
  pinned.revision = folder.filename().string();
  auto files = split_files(all, card_of(folder), entry.wanted, name.text() + entry.end);
  download_snapshot(
      pinned, options.settings, [&](const auto&) { return files; }, options.on_progress);
  return {.paths = within(folder, files), .pinned = pinned.text() + entry.end};
}

/// Is it meant as a file, which may be missing?
bool looks_like_a_file(const std::string& entry) {
  const auto extension = fs::path(entry).extension();
  return records::type_by_name(entry) || extension == ".bin" || extension == ".txt" ||
         entry.find_first_of("*?[") != std::string::npos;
}

}  // namespace

ResolvedData resolve_data(const std::string& entry, const MakeOptions& make_options) {
  ResolvedData itself{.paths = {entry}, .pinned = entry};
  if (fs::exists(entry) || looks_like_a_file(entry)) return itself;
  const auto parts = parts_of(entry);
  if (!parts) return itself;
  if (fs::is_directory(parts->source))
    return {.paths = files_of_folder(parts->source, *parts, entry), .pinned = entry};
  const auto name = parse_repository_name(parts->source, RepositoryKind::dataset);
  if (!name) return itself;
  const auto options = make_options();
  if (options.settings.offline) {
    return cached_data(*name, *parts, options.settings,
                       "HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE is set");
  }
  try {
    return downloaded_data(*name, *parts, options);
  } catch (const Unreachable& error) {
    const auto why = fmt::format("the Hub cannot be reached ({})", error.what());
    auto cached = cached_data(*name, *parts, options.settings, why);
    if (options.on_notice)
      options.on_notice(fmt::format("{}: {}; using {}", entry, why, cached.pinned));
    return cached;
  }
}

}  // namespace tessera::hub
