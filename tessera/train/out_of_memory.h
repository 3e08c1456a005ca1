// What one is told where a GPU's memory ran out.
#pragma once

#include <string>

#include "tessera/config/run_config.h"
#include "tessera/train/assemble.h"

namespace tessera::train {

/// The one change that saves most at the least cost, such as "set train.micro_batch to 2 (now 4)". `micro_batch`:
/// sequences at a time.
std::string saving_advice(const config::RunConfig& config, int64_t micro_batch);

/// One line: what holds how much of the device's memory, and saving_advice().
std::string out_of_memory_text(const Run& run, int64_t step);

}  // namespace tessera::train
