#include "tessera/hub/cache.h"

#include <algorithm>
#include <string_view>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/nearest.h"

namespace tessera::hub {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kSeparator = "--";

std::string folder_name(const RepositoryName& name) {
  const auto slash = name.repository.find('/');
  return fmt::format("{}{}{}{}{}", name.kinds(), kSeparator, name.repository.substr(0, slash),
                     kSeparator, name.repository.substr(slash + 1));
}

}  // namespace

Cache::Cache(const fs::path& root, const RepositoryName& name)
    : folder_(root / folder_name(name)), locks_(root / ".locks" / folder_name(name)) {}

std::optional<std::string> Cache::commit_of(const std::string& revision) const {
  if (is_commit(revision)) return revision;
  const auto ref = folder_ / "refs" / revision;
  if (!fs::is_regular_file(ref)) return std::nullopt;
  const auto commit = read_file(ref);
  return is_commit(commit) ? std::optional(commit) : std::nullopt;
}

std::vector<std::string> Cache::revisions() const {
  std::vector<std::string> names;
  std::error_code ignored;
  const auto refs = folder_ / "refs";
  for (const auto& entry : fs::recursive_directory_iterator(refs, ignored)) {
    if (entry.is_regular_file()) names.push_back(entry.path().lexically_relative(refs));
  }
  return names;
}

void Cache::link(const std::string& commit, const std::string& file,
                 const std::string& etag) const {
  const auto path = snapshot(commit) / file;
  if (fs::exists(path)) return;
  make_folder(path.parent_path());
  std::error_code error;
  fs::remove(path, error);  // a link that leads nowhere
  fs::create_symlink(blob(etag).lexically_relative(path.parent_path()), path, error);
  if (error && !fs::exists(path)) {  // another process may have been first
    throw SystemError(fmt::format("{}: no link can be made: {}", path.string(), error.message()));
  }
}

void Cache::set_commit(const std::string& revision, const std::string& commit) const {
  if (commit_of(revision) == commit) return;
  const auto ref = folder_ / "refs" / revision;
  make_folder(ref.parent_path());
  write_file(ref, commit);
}

std::vector<std::string> cached_repositories(const fs::path& root, RepositoryKind kind) {
  std::vector<std::string> names;
  const auto prefix = fmt::format("{}{}", RepositoryName{.kind = kind}.kinds(), kSeparator);
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(root, ignored)) {
    const auto folder = entry.path().filename().string();
    const auto separator = folder.find(kSeparator, prefix.size());
    if (!folder.starts_with(prefix) || separator == std::string::npos) continue;
    names.push_back(fmt::format("{}/{}", folder.substr(prefix.size(), separator - prefix.size()),
                                folder.substr(separator + kSeparator.size())));
  }
  return names;
}

std::string cached_hint(const fs::path& root, const RepositoryName& name) {
  const auto cached = cached_repositories(root, name.kind);
  if (std::ranges::find(cached, name.repository) == cached.end()) {
    return did_you_mean(name.repository, cached);
  }
  return did_you_mean(name.revision, Cache(root, name).revisions());
}

}  // namespace tessera::hub
