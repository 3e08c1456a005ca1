// What one is told where memory ran out.
#pragma once

#include <c10/util/FunctionRef.h>

#include <cstdint>
#include <string>

#include "tessera/config/run_config.h"
#include "tessera/train/assemble.h"

namespace tessera::train {

/// The one change that saves most of a step's memory at the least cost, such as "set train.micro_batch to 2 (now 4)".
/// `micro_batch`: sequences at a time. `on_gpu`: the memory is a GPU's, which the host's can relieve.
std::string saving_advice(const config::RunConfig& config, int64_t micro_batch, bool on_gpu);

/// The same of what a model and its optimizer take outside of steps.
std::string layout_advice(const config::RunConfig& config, bool on_gpu);

/// Runs a rank of a job. Where memory ends in it, throws UserError: how much was held, and layout_advice().
void within_memory(const config::RunConfig& config, const launch::RankEnvironment& environment,
                   c10::function_ref<void()> body);

/// Runs a step of it. Where memory ends in it, throws UserError: what holds how much of it, and saving_advice().
void within_memory(const Run& run, int64_t step, c10::function_ref<void()> body);

}  // namespace tessera::train
