// What an index says beside its tensors: types and ranges of every key that somebody reads.
#pragma once

#include <filesystem>

#include "tessera/checkpoint/index.h"

namespace tessera::checkpoint {

/// UserError with `path` and key unless step, layout, state and model are as whoever reads them
/// takes them to be (train/resume.h, train/save_state.h, the Accelerator). Keys may be
/// absent, and others may be there.
void check_schema(const std::filesystem::path& path, const Index& index);

}  // namespace tessera::checkpoint
