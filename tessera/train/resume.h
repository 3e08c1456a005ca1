// From which checkpoint a run goes on, and whether that is one of its own.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "tessera/checkpoint/formats/base_weights.h"
#include "tessera/train/assemble.h"
#include "tessera/train/best_validation.h"

namespace tessera::train {

/// What a run has counted. In a checkpoint's index, beside other state (only "step" must be there):
///   {"step": 100, "num_steps": 1000, "samples_seen": 1600, "tokens_seen": 409600,
///    "seeds": {"model": 1234, "data": 0},
///    "run_id": "0f3a..", "data": {"tokens": 1000000, "sample": "<64 hex digits>"},
///    "base": {"path": "/models/base", "sample": "<64 hex digits>"}, "adapter": {"type": "lora", "rank": 8, ..},
///    "optimizer": {"type": "adamw", "step": 100},
///    "best_validation": {"loss": 2.5, "step": 80, "since": 1, "reached": 2.5},
///    "loss_scaler": {"scale": 65536.0, "growth_tracker": 100, "skipped_steps": 0}}
struct Counts {
  int64_t step = 0;  ///< optimizer steps, skipped ones included
  int64_t samples_seen = 0, tokens_seen = 0;
  BestValidation best;
};

/// Is there no step to come: the last one is done, or validation has got no better for so long?
bool is_done(const Run& run, const Counts& counts);

/// Why a run has ended before its last step, in a line; "": it has not.
std::string early_end(const Run& run, const Counts& counts);

/// What checkpoint.resume asks for: which checkpoint was taken, and lines for people: what was
/// passed over and why, what differs.
struct Resumed {
  Counts counts;
  std::vector<std::string> notes;
  std::vector<std::filesystem::path> damaged;  ///< passed over
  std::filesystem::path source;                ///< the checkpoint that was taken; empty: none
  std::string run_id;                          ///< of the run that saved it; empty: not known
};

/// Reads the newest checkpoint that is whole, or the one that is named. Damaged ones (and no
/// others) are passed over. Collective. UserError: there are some, but none is usable; another
/// model's, whose configuration differs in what the model computes; one of an adapter beside other weights; another run's in this run's
/// folder; a folder named for another step.
Resumed resume(Run& run);

/// Reads a checkpoint into a run, whatever ranks and placement wrote it. Collective. UserError:
/// another model's, or damage; then the run's state is undefined.
Counts load_checkpoint(Run& run, const std::filesystem::path& folder);

/// The folder of a run's checkpoints.
std::filesystem::path checkpoint_folder(const config::RunConfig& config);

/// Where that folder says whose it is: 32 hexadecimal digits, drawn when the run starts anew.
inline constexpr const char* kRunIdFile = "run_id";

/// The id that the folder's run has; "": none has one yet.
std::string run_id_in(const std::filesystem::path& folder);

/// config.json: the one that the model came with, unless the job file changed its shape. UserError:
/// it cannot be kept in a checkpoint (nested too deep, ..).
nlohmann::json model_config(const Run& run);

/// The training data as a checkpoint tells it: {"tokens": .., "sample": a few of them, summed up}.
nlohmann::json data_of(const Run& run);

/// The weights beside which the run trains an adapter; none: it trains its model. Collective.
std::optional<checkpoint::BaseWeights> base_of(const Run& run);

}  // namespace tessera::train
