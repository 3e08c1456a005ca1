// Does a run fit a device, and what would make it fit?
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tessera/estimate/step_memory.h"

namespace tessera::estimate {

/// A setting of another value: a key of the job file and its value.
using Setting = std::pair<std::string, std::string>;

struct Change {
  std::vector<Setting> settings;
  double device_bytes = 0;  ///< what a rank needs with it
};

struct RankEstimate {
  int64_t num_ranks = 1;
  StepMemory memory;
  double limit = 0;              ///< bytes of the device
  std::optional<Change> remedy;  ///< if it does not fit: the first single change that makes it fit
  Change least;                  ///< then, without a remedy: all changes together

  bool fits() const { return memory.device_bytes() <= limit; }
};

/// `config.parallel.num_ranks` ranks, each on a device of `limit` bytes. Changes are tried in the
/// order of what they cost: placement (communication), checkpointing (computation), offload
/// (transfers, not on a CPU), smaller micro-batches (slower kernels), bf16 (precision).
RankEstimate estimate_rank(const config::RunConfig& config, const config::ModelShape& shape,
                           const Device& device, double limit);

/// A table of phases and purposes, what is beside the tensors, and the verdict. `limit_name`: whose
/// memory it is ("the device").
std::string rank_text(const RankEstimate& estimate, const std::string& limit_name);
nlohmann::ordered_json rank_json(const RankEstimate& estimate);

}  // namespace tessera::estimate
