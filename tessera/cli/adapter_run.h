// A run that trained an adapter.
#pragma once

#include <cstdint>
#include <filesystem>

#include "tessera/checkpoint/formats/base_weights.h"
#include "tessera/checkpoint/formats/training_source.h"
#include "tessera/models/adapter.h"

namespace tessera::cli {

struct AdapterRun {
  checkpoint::TrainingSource training;  ///< tensors by the names of models::trained_parameters
  checkpoint::BaseWeights base;
  models::AdapterSpec spec;
};

/// Opens a run, its folder of checkpoints or one of them; `step` as chosen_checkpoint has it. UserError: it trained a whole
/// model.
AdapterRun open_adapter_run(const std::filesystem::path& source, int64_t step);

}  // namespace tessera::cli
