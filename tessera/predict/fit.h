// Does a run fit its devices, what would make it fit, and what does it send?
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tessera/plan/rank_part.h"
#include "tessera/predict/activations.h"
#include "tessera/predict/communication.h"
#include "tessera/predict/drives.h"
#include "tessera/predict/step_memory.h"

namespace tessera::predict {

/// A setting of another value: a key of the job file and its value.
using Setting = std::pair<std::string, std::string>;

struct Change {
  std::vector<Setting> settings;
  double device_bytes = 0;  ///< what a rank needs with it
};

/// One rank of the pipeline, or of the run if there is none.
struct RankNeeds {
  plan::RankPart part;
  StepMemory memory;
  Communication communication;
  DriveTraffic drives;
  InFlight in_flight;
};

struct RankEstimate {
  int64_t num_ranks = 1;
  int64_t trained = 0, parameters = 0;  ///< of the whole model, an adapter's own among both
  std::vector<RankNeeds> pipeline;      ///< by place
  size_t largest = 0;                   ///< the place that needs the most
  std::string schedule;                 ///< name of the pipeline's
  double bubble = 0;             ///< idle share, if stages take equal times and transfers none
  double limit = 0;              ///< bytes of the device
  std::optional<Change> remedy;  ///< if it does not fit: the first single change that makes it fit
  Change least;                  ///< then, without a remedy: all changes together

  const RankNeeds& rank() const { return pipeline[largest]; }
  const StepMemory& memory() const { return rank().memory; }
  bool fits() const { return memory().device_bytes() <= limit; }
};

/// `config.parallel.num_ranks` ranks, each on a device of `limit` bytes. Changes are tried in the
/// order of what they cost: placement (communication), checkpointing (computation), offload
/// (transfers, not on a CPU), smaller micro-batches (slower kernels), bf16 (precision). UserError
/// for a mesh, heads, layers or a schedule that do not fit the model or the batch.
RankEstimate estimate_rank(const config::RunConfig& config, const models::ModelShape& shape,
                           const Device& device, double limit);

/// The estimate as text: of the rank that needs the most a table of phases and purposes, what is
/// beside the tensors, and the verdict; the ranks of a pipeline; what a rank sends. `limit_name`:
/// whose memory it is ("the device").
std::string rank_text(const RankEstimate& estimate, const std::string& limit_name);
nlohmann::ordered_json rank_json(const RankEstimate& estimate);

}  // namespace tessera::predict
