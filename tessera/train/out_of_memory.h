// What one is told where a GPU's memory ran out.
#pragma once

#include <c10/util/FunctionRef.h>

#include <cstdint>
#include <string>

#include "tessera/config/run_config.h"
#include "tessera/train/assemble.h"

namespace tessera::train {

/// The one change that saves most at the least cost, such as "set train.micro_batch to 2 (now 4)". `micro_batch`:
/// sequences at a time.
std::string saving_advice(const config::RunConfig& config, int64_t micro_batch);

/// Runs a step. Where the memory of a GPU ends in it, throws UserError: what holds how much of it, and saving_advice().
void within_memory(const Run& run, int64_t step, c10::function_ref<void()> body);

}  // namespace tessera::train
