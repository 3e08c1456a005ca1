// The folder in which models and data sets are kept, laid out as Hugging Face's own library does:
//
//   models--org--name/blobs/<etag>                 contents, each once
//   models--org--name/snapshots/<commit>/<file>    symbolic links to them
//   models--org--name/refs/<revision>              the commit, as text
//   .locks/models--org--name/<etag>.lock           held by who downloads
//
// Data sets lie in datasets--org--name.
//
// Layout: https://huggingface.co/docs/huggingface_hub/guides/manage-cache
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "tessera/hub/repository_name.h"

namespace tessera::hub {

/// One repository's part of the cache.
class Cache {
 public:
  Cache(const std::filesystem::path& root, const RepositoryName& name);

  std::filesystem::path blob(const std::string& etag) const { return folder_ / "blobs" / etag; }
  std::filesystem::path lock(const std::string& etag) const { return locks_ / (etag + ".lock"); }
  std::filesystem::path snapshot(const std::string& commit) const {
    return folder_ / "snapshots" / commit;
  }

  /// The commit that a revision was when it was last downloaded; a commit stands for itself.
  std::optional<std::string> commit_of(const std::string& revision) const;

  std::vector<std::string> revisions() const;  ///< with a known commit

  /// Makes `file` of a snapshot a link to a blob; SystemError if that is impossible.
  void link(const std::string& commit, const std::string& file, const std::string& etag) const;
  /// Remembers what a revision is; SystemError if the folder cannot be written.
  void set_commit(const std::string& revision, const std::string& commit) const;

 private:
  std::filesystem::path folder_, locks_;
};

/// "org/name" of everything of this kind that is cached.
std::vector<std::string> cached_repositories(const std::filesystem::path& root,
                                             RepositoryKind kind);

/// "; did you mean 'x'?" with the nearest cached name of its kind or, if it is cached, its nearest
/// revision; "" if nothing is near.
std::string cached_hint(const std::filesystem::path& root, const RepositoryName& name);

}  // namespace tessera::hub
