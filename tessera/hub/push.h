// A folder to the Hugging Face Hub.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include "tessera/hub/repository_name.h"
#include "tessera/hub/settings.h"
#include "tessera/hub/snapshot.h"

namespace tessera::hub {

struct PushOptions {
  std::filesystem::path folder;
  RepositoryName name;      ///< its revision is a branch, made if it is missing
  bool is_private = false;  ///< where the repository is made
  std::string message = "Upload by tessera push";
  Settings settings = settings_from_environment();
  OnProgress on_progress;  ///< called often, from several threads, one at a time
  std::function<void(const std::string&)> on_notice;  ///< a line: what is made, sent, left out
};

struct Pushed {
  int64_t num_files = 0;      ///< in the commit
  int64_t num_unchanged = 0;  ///< that the repository has already
  std::string url;            ///< of the commit; "": there was nothing to commit
};

/// Makes the repository if it is missing, sends what it lacks of the folder and makes it one commit.
/// Files whose content is there (by SHA-256, or Git's name of small ones) are skipped, and so are
/// large files that an interrupted push has sent. Files that are only at the Hub stay there. UserError: offline, no token or no
/// right, a name or file that is refused; not reachable after Settings::max_attempts.
/// Cost: reads each file twice, first for its hash.
Pushed push(const PushOptions& options);

}  // namespace tessera::hub
