// A DeepSpeed JSON configuration, as `deepspeed_config_file` names it.
#pragma once

#include <filesystem>

#include "tessera/config/accelerate/ledger.h"

namespace tessera::config::accelerate {

/// Reads `file`, appends an entry for each of its keys (dotted: "zero_optimization.stage"; origin
/// "zero_stage1_config.json:12") to `translation.ledger` and what follows to `translation.job`.
/// "auto" takes what `settings`, else the job file, says. UserError with file and line: malformed,
/// unknown keys with the nearest right one, wrong types, values that contradict `settings`.
void translate_deepspeed_file(const std::filesystem::path& file, const Settings& settings,
                              Translation& translation);

}  // namespace tessera::config::accelerate
