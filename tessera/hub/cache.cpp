#include "tessera/hub/cache.h"

#include <algorithm>
#include <string_view>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/nearest.h"

namespace tessera::hub {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kPrefix = "models--", kSeparator = "--";

std::string folder_name(const std::string& repository) {
  const auto slash = repository.find('/');
  return fmt::format("{}{}{}{}", kPrefix, repository.substr(0, slash), kSeparator,
                     repository.substr(slash + 1));
}

}  // namespace

Cache::Cache(const fs::path& root, const ModelName& name)
    : folder_(root / folder_name(name.repository)),
      locks_(root / ".locks" / folder_name(name.repository)) {}

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
  fs::create_symlink(fs::path("..") / ".." / "blobs" / etag, path, error);
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

std::vector<std::string> cached_models(const fs::path& root) {
  std::vector<std::string> models;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(root, ignored)) {
    const auto folder = entry.path().filename().string();
    const auto separator = folder.find(kSeparator, kPrefix.size());
    if (!folder.starts_with(kPrefix) || separator == std::string::npos) continue;
    models.push_back(fmt::format("{}/{}", folder.substr(kPrefix.size(), separator - kPrefix.size()),
                                 folder.substr(separator + kSeparator.size())));
  }
  return models;
}

std::string cached_hint(const fs::path& root, const ModelName& name) {
  const auto models = cached_models(root);
  if (std::ranges::find(models, name.repository) == models.end()) {
    return did_you_mean(name.repository, models);
  }
  return did_you_mean(name.revision, Cache(root, name).revisions());
}

}  // namespace tessera::hub
