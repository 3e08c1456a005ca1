// Where rows are: paths as they are, or a data set's name on the Hugging Face Hub through the local cache.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tessera/hub/resolve.h"

namespace tessera::hub {

struct ResolvedData {
  std::vector<std::string> paths;
  /// The same entry with the commit that was found, so that who resolves it later has the same files.
  std::string pinned;
};

/// Called where a name must be looked up, and only there.
using MakeOptions = std::function<ResolveOptions()>;

/// What an entry of a list of data stands for. What exists as a path, a pattern and the name of a
/// file of rows are themselves. "FOLDER:split" and "FOLDER:config/split" are files of a folder,
/// "org/data", "org/data:split", "org/data:config/split", each also with `@revision` behind "org/data",
/// those of a data set (dataset_files.h): what the cache lacks of them is downloaded, no other files.
/// Offline, or if the Hub does not answer, the cached ones serve. Errors as resolve() has them; UserError also: no
/// such split or configuration.
ResolvedData resolve_data(const std::string& entry, const MakeOptions& options);

}  // namespace tessera::hub
