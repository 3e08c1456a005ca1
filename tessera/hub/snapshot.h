// A whole model from the Hub into the cache.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>

#include "tessera/hub/model_name.h"
#include "tessera/hub/settings.h"

namespace tessera::hub {

/// Bytes of all files that are downloaded now.
struct Progress {
  int64_t done_bytes = 0;
  int64_t total_bytes = 0;
};

using OnProgress = std::function<void(const Progress&)>;

/// Downloads what the cache lacks, several files at a time, and returns the snapshot's folder. What
/// is there costs one request. Throws UserError (refused, no safetensors, too little space),
/// SystemError (disk), Unreachable.
std::filesystem::path download_snapshot(const ModelName& name, const Settings& settings,
                                        bool weights, const OnProgress& on_progress);

}  // namespace tessera::hub
