// What one rank has of a model: its part of each matrix (tensor parallelism), its stages (pipeline
// parallelism) and what it does with them in a step.
#pragma once

#include <cstdint>
#include <vector>

#include "tessera/config/run_config.h"
#include "tessera/plan/pipeline.h"
#include "tessera/schedule/table.h"

namespace tessera::plan {

/// What the backward of a block needs for what is trained in it. Without an adapter that is all.
struct TrainedOfBlock {
  bool has_graph = true;     ///< it, or something before it, is trained
  bool input_graph = true;   ///< something before it is trained
  bool attention = true;     ///< a gradient reads what enters the attention
  bool feed_forward = true;  ///< likewise; of a mixture without the rows of its experts
  bool expert_rows = true;   ///< a gradient reads the rows that enter experts
  bool last_product = true;  ///< a gradient reads what enters the feed-forward's last product
  /// Numbers that its adapters keep for each token: x A^T, with dropout the x that enters A, and of
  /// DoRA what is multiplied by magnitudes.
  double adapter_numbers = 0;

  bool operator==(const TrainedOfBlock&) const = default;
};

struct RankPart {
  /// Heads, key heads, widths of feed-forwards, vocab_size, num_layers and experts.token_ranks are
  /// those of this rank; the rest is the model's. A layer's own: models::shape_of_layer(shape, layer of the whole).
  models::ModelShape shape;
  mesh::MeshShape mesh;
  int64_t position_ranks = 1;          ///< share the positions of what lies between matrices
  int64_t key_copies = 1;              ///< ranks of tp that have the same key heads
  std::vector<TrainedOfBlock> blocks;  ///< of the whole model
  bool trains_head = true;             ///< has the head's table a gradient?
  bool shares_table = false;           ///< tied: another rank of the pipeline has the table as well

  struct Stage {
    PipelinePlan::Layers layers;
    bool embeds = true, predicts = true;                ///< has the embedding; norm and head
    bool sends_output = false, sends_gradient = false;  ///< to another rank
    bool splits_backward = false;                       ///< into an input and a weight part
  };
  std::vector<Stage> stages;
  int64_t num_peers = 0;  ///< ranks that have a stage before or after one of these

  std::vector<schedule::Action> actions;  ///< of one step; their stages count in `stages`
  double kept_for_weight = 1;             ///< schedule/table.h
  int64_t num_micro_batches = 1;
  int64_t micro_batch = 1;  ///< sequences in each

  /// Is the head tied to an embedding that this rank has, too, so that one table serves both?
  bool has_tied_table() const;
};

/// The parts of all ranks, by place in the pipeline; of the ranks that share matrices the one with
/// the most. UserError if tp cannot divide the heads.
std::vector<RankPart> rank_parts(const config::RunConfig& config, const models::ModelShape& shape,
                                 const mesh::MeshShape& mesh, const PipelinePlan& plan);

}  // namespace tessera::plan
