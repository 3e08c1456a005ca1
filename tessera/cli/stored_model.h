// Models and data that a command is given: runs, checkpoints, folders, names on the Hub.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "tessera/hub/resolve_data.h"

namespace tessera::cli {

/// The folder of a model on the Hugging Face Hub (hub::resolve; `weights`: with them), with a line on
/// stderr where there is something to wait for; what is there as a path is returned as it is.
std::string model_folder(const std::string& name_or_path, bool weights);

/// What an entry of data stands for (hub::resolve_data), with such lines.
hub::ResolvedData data_files(const std::string& entry);

/// Where `source` is a run, or its folder of checkpoints: the checkpoint of `step`, or (-1) the last.
/// Else `source`. UserError: no such step.
std::filesystem::path chosen_checkpoint(const std::filesystem::path& source, int64_t step);

}  // namespace tessera::cli
