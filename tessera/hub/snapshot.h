// Files of a repository from the Hub into the cache.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "tessera/hub/repository_name.h"
#include "tessera/hub/settings.h"

namespace tessera::hub {

/// Bytes of all files that are downloaded now.
struct Progress {
  int64_t done_bytes = 0;
  int64_t total_bytes = 0;
};

using OnProgress = std::function<void(const Progress&)>;

/// Those of a repository's files that are wanted; may throw UserError.
using ChooseFiles = std::function<std::vector<std::string>(const std::vector<std::string>& all)>;

/// Downloads what the cache lacks of the files that `choose` names, several at a time, and returns
/// the snapshot's folder. What is there costs one request. Throws UserError (refused, too little space),
/// SystemError (disk), Unreachable.
std::filesystem::path download_snapshot(const RepositoryName& name, const Settings& settings,
                                        const ChooseFiles& choose, const OnProgress& on_progress);

}  // namespace tessera::hub
