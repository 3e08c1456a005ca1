// A run that trained an adapter.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "tessera/checkpoint/formats/stored_adapter.h"
#include "tessera/checkpoint/formats/training_source.h"
#include "tessera/config/run_config.h"

namespace tessera::cli {

struct AdapterRun {
  checkpoint::TrainingSource training;  ///< tensors by the names of models::trained_parameters
  checkpoint::StoredAdapter adapter;
};

/// Opens a run, its folder of checkpoints or one of them; `step` as chosen_checkpoint has it. UserError: it trained a whole
/// model.
AdapterRun open_adapter_run(const std::filesystem::path& source, int64_t step);

/// What the run trained itself; the run outlives it.
checkpoint::AdapterPart own_part(const AdapterRun& run);
/// Like checkpoint::parts_of_base, but with `own_only` (--own-only) without those of adapter.base. UserError if it has none.
std::vector<checkpoint::AdapterPart> parts_below(const AdapterRun& run, bool own_only,
                                                 const models::ModelShape& shape);
/// The job with the settings of the stored adapter that it trains on (adapter.path), if there is
/// one. UserError as checkpoint::PeftAdapter.
config::RunConfig with_stored_adapter(config::RunConfig job, const models::ModelShape& shape);

[[noreturn]] void refuse_own_only(const std::string& source);

}  // namespace tessera::cli
