// Bytes that a token of a micro-batch costs between forward and backward
// (docs/activation_checkpointing.md), by model family, checkpointing, precision and the rank's part
// of the model.
#pragma once

#include <cstdint>

#include "tessera/config/run_config.h"
#include "tessera/plan/rank_part.h"

namespace tessera::predict {

/// Bytes that transformer block `index` takes, for each token of the whole sequence.
struct BlockActivations {
  double kept = 0;      ///< from its forward to its backward
  double away = 0;      ///< of that, what waits elsewhere (memory.offload_activations)
  double staying = 0;   ///< what is on the device meanwhile: the rest
  double working = 0;   ///< beside that, while its backward runs
  double inside = 0;    ///< and at the most, that of its feed-forward, the widest part
  double deferred = 0;  ///< kept between the two parts of a split backward
};
BlockActivations block_activations(const config::RunConfig& config, const plan::RankPart& part,
                                   int64_t index);

/// Are feed-forwards of checkpointed blocks computed again?
bool repeats_feed_forward(const config::RunConfig& config);
/// Is the last product of a block that is computed again made again, too (train/engine_options.h)? DoRA reads it.
bool repeats_last_product(const config::RunConfig& config, const models::ModelShape& shape);

/// Is block `index` checkpointed?
bool is_checkpointed(const config::MemorySection& section, int64_t index);

/// Bytes of one number that is computed with.
int64_t compute_bytes(const config::PrecisionSection& precision);

/// Bytes of one activation as wide as the model, for each token: where positions are divided, this
/// rank's share.
double stream_bytes(const config::PrecisionSection& precision, const plan::RankPart& part);

/// Bytes of messages on their way from other ranks, two on each channel
/// (parallel/pipeline/messages.cpp).
double arriving_bytes(const config::RunConfig& config, const plan::RankPart& part);

/// Bytes of the buffers through which activations go to drives: no more than go there.
double buffers_for_activations(const config::RunConfig& config, const plan::RankPart& part);

/// Bytes on the device of what is on its way to the host or back (memory/pinned_store.cpp): what a block leaves, of the
/// largest; twice in a pipeline.
double crossing_bytes(const config::RunConfig& config, const plan::RankPart& part);

/// Bytes on the device that a stage's blocks keep for each token, and its last norm and head.
double kept_by_blocks(const config::RunConfig& config, const plan::RankPart& part,
                      const plan::RankPart::Stage& stage);
double kept_by_head(const config::RunConfig& config, const plan::RankPart& part);

/// Peak bytes that all micro-batches in flight keep between forward and backward.
int64_t kept_activation_bytes(const config::RunConfig& config, const plan::RankPart& part);

/// Bytes that a rank holds when each of its stages starts a pass, at the most.
struct Held {
  double forward = 0;   ///< without this pass's own
  double backward = 0;  ///< with them
};
struct InFlight {
  std::vector<Held> stages;
  double bytes = 0;          ///< at the end of a forward, at the most
  double micro_batches = 0;  ///< likewise, each stage's counted by itself
  double away = 0;           ///< that wait elsewhere meanwhile, at the most
};
/// Follows the rank's table (schedule/check.h: peak_activations). Two actions at the same time come
/// one after the other, as in the engine (parallel/pipeline/pipeline.h).
InFlight in_flight(const config::RunConfig& config, const plan::RankPart& part);

}  // namespace tessera::predict
