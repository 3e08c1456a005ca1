// Batches of samples as tensors, by step and row, the same for every number of ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "tessera/data/mixture.h"
#include "tessera/data/rows.h"

namespace tessera::data {

/// A document of a batch. Of pairs, the chosen answer comes before the rejected one.
struct BatchDocument {
  int64_t begin = 0, end = 0;  ///< in the batch's B T positions
  int64_t index = 0;           ///< in the data set
  int64_t num_tokens = 0;      ///< targets that are not ignored
};

/// Some rows of a step's batch, on the CPU. B rows, T = seq_len.
struct Batch {
  at::Tensor inputs;       ///< [B, T] int64
  at::Tensor targets;      ///< [B, T] int64, inputs shifted by one; kIgnoredTarget where there is
                           ///< nothing to predict
  at::Tensor documents;    ///< in the rows (kernels/documents.h); undefined: each row is one
  int64_t num_tokens = 0;  ///< targets that are not ignored
  std::vector<BatchDocument> contents = {};  ///< `documents` with what is known of each
};

struct RowRange {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
};

/// The rows of a global batch of B that rank i of W takes: [i B / W, (i + 1) B / W), uneven when W
/// does not divide B.
RowRange rows_of(int64_t rank, int64_t world_size, int64_t global_batch);

/// What stands in rows whose sample lies beyond the data: the samples again (the next epoch), or
/// rows of zeros with every target ignored, so that a validation pass counts each sample once on
/// any number of ranks.
enum class PastEnd { wrap, ignore };

struct LoaderOptions {
  int64_t global_batch = 8;  ///< B, rows of one step over all ranks
  int64_t rank = 0, world_size = 1;
  uint64_t seed = 0;
  bool shuffle = true;
  PastEnd past_end = PastEnd::wrap;
};

/// Row r of step s (both from 0) is the sample that MixtureSampler puts at the global index s B + r, or
/// after go_on(step, sample) at sample + (s - step) B + r. The position of a run is its step
/// number.
class Loader {
 public:
  /// UserError: more ranks than rows (a rank would have nothing to do); with PastEnd::wrap also
  /// more ranks than samples, and, when shuffled, fewer samples than rows (a batch would hold a
  /// sample twice).
  Loader(std::shared_ptr<const Rows> rows, const LoaderOptions& options);

  /// Step `step` begins with the sample at the global index `sample`: after a run with another B.
  void go_on(int64_t step, int64_t sample) { first_ = sample - step * options_.global_batch; }

  /// The same rows, each once and in their order.
  Loader in_order() const;

  const Rows& data() const { return *data_; }
  RowRange rows() const;        ///< of this rank, in every step
  int64_t num_batches() const;  ///< steps that see every sample once, the last one perhaps not full
  const MixtureSampler& sampler() const { return sampler_; }

  /// Rows [begin, end) of step `step`; 0 <= begin < end <= B, not only this rank's.
  /// UserError at a token beyond the vocabulary. Cost: copies the tokens once.
  Batch batch(int64_t step, int64_t begin_row, int64_t end_row) const;
  Batch batch(int64_t step) const;  ///< all rows of this rank

 private:
  std::shared_ptr<const Rows> data_;
  LoaderOptions options_;
  MixtureSampler sampler_;
  int64_t first_ = 0;  // global index of row 0 of step 0
};

}  // namespace tessera::data
