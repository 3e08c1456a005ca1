#include "tessera/data/batch.h"

#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "tessera/base/error.h"

namespace tessera::data {

RowRange rows_of(int64_t rank, int64_t world_size, int64_t global_batch) {
  return {rank * global_batch / world_size, (rank + 1) * global_batch / world_size};
}

Loader::Loader(std::shared_ptr<const Rows> rows, const LoaderOptions& options)
    : data_(std::move(rows)),
      options_(options),
      // Where each row comes once, none is drawn by a weight.
      sampler_({.sources =
                    options.past_end == PastEnd::ignore ? data_->Rows::sources() : data_->sources(),
                .seed = options.seed,
                .shuffle = options.shuffle}) {
  const int64_t world_size = options.world_size, samples = data_->size();
  TORCH_INTERNAL_ASSERT(0 <= options.rank && options.rank < world_size, "rank ", options.rank,
                        " of ", world_size);
  if (options.global_batch < world_size) {
    user_error("global_batch: expected at least one sequence for each of {} ranks, got {}",
               world_size, options.global_batch);
  }
  if (options.past_end == PastEnd::ignore) return;
  if (samples < world_size) {
    user_error(
        "train: more ranks than samples: expected at least {} samples of {} tokens, got {}; "
        "use fewer ranks, more data or a smaller seq_len",
        world_size, data_->seq_len(), samples);
  }
  if (options.shuffle && samples < options.global_batch) {
    user_error(
        "train: fewer samples than global_batch: expected at least {} samples of {} "
        "tokens, got {}; set a smaller global_batch or seq_len, or shuffle to false",
        options.global_batch, data_->seq_len(), samples);
  }
}

Loader Loader::in_order() const {
  auto options = options_;
  options.shuffle = false, options.past_end = PastEnd::ignore;
  return {data_, options};
}

RowRange Loader::rows() const {
  return rows_of(options_.rank, options_.world_size, options_.global_batch);
}

int64_t Loader::num_batches() const {
  return (data_->size() + options_.global_batch - 1) / options_.global_batch;
}

Batch Loader::batch(int64_t step, int64_t begin_row, int64_t end_row) const {
  TORCH_INTERNAL_ASSERT(
      step >= 0 && 0 <= begin_row && begin_row < end_row && end_row <= options_.global_batch,
      "rows [", begin_row, ", ", end_row, ") of step ", step);
  const int64_t length = data_->seq_len(), num_rows = end_row - begin_row;
  Batch batch{.inputs = at::zeros({num_rows, length}, at::kLong),
              .targets = at::full({num_rows, length}, kIgnoredTarget, at::kLong),
              .documents = at::Tensor()};
  auto* inputs = batch.inputs.mutable_data_ptr<int64_t>();
  auto* targets = batch.targets.mutable_data_ptr<int64_t>();
  std::vector<int64_t> bounds;  // of documents, in the batch
  std::vector<DocumentRange> documents;
  for (int64_t row = 0; row < num_rows; ++row) {
    const int64_t index = first_ + step * options_.global_batch + begin_row + row;
    if (options_.past_end == PastEnd::ignore && index >= data_->size()) break;
    const std::span row_targets(targets + row * length, static_cast<size_t>(length));
    documents.clear();
    data_->read(sampler_(index), {inputs + row * length, static_cast<size_t>(length)}, row_targets,
                documents);
    const auto predicted = [&](int64_t begin, int64_t end) {
      const auto part =
          row_targets.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
      return end - begin - std::ranges::count(part, kIgnoredTarget);
    };
    for (const auto& [begin, end, document] : documents) {
      bounds.insert(bounds.end(), {row * length + begin, row * length + end});
      batch.contents.push_back({.begin = row * length + begin,
                                .end = row * length + end,
                                .index = document,
                                .num_tokens = predicted(begin, end)});
    }
    batch.num_tokens += predicted(0, length);
  }
  if (!bounds.empty()) batch.documents = at::tensor(bounds, at::kLong).view({-1, 2});
  return batch;
}

Batch Loader::batch(int64_t step) const {
  const auto mine = rows();
  return batch(step, mine.begin, mine.end);
}

}  // namespace tessera::data
