// Which files make a model.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace tessera::hub {

/// Those of a repository's files that are used here: config.json (of an adapter:
/// adapter_config.json), kTextFiles, and, if `weights`, model.safetensors, else the index and its
/// shards, else every .safetensors. No other formats, nothing in subfolders.
std::vector<std::string> wanted_files(const std::vector<std::string>& all, bool weights);

/// The first file that a model in `folder` lacks (its configuration; if `weights`, also its weights
/// with every shard); "" if none.
std::string missing_file(const std::filesystem::path& folder, bool weights);

}  // namespace tessera::hub
