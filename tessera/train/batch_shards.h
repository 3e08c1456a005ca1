// Which rows of a data loader's batches a rank takes: the rule of Accelerate's data loaders.
#pragma once

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "tessera/train/batch_rows.h"

namespace tessera::train {

struct BatchShardOptions {
  int rank = 0, size = 1;
  /// false: of every `size` batches each rank takes one, so the batch of a step is `size` times the
  /// loader's; true: every rank takes its part of each batch.
  bool split_batches = false;
  /// Where rows do not suffice for all ranks at the end, the first ones are taken again, so that
  /// every rank has equal batches; false: some ranks have fewer or smaller ones.
  bool even_batches = true;
  /// split_batches: the last batch is completed to a multiple of the ranks alone, as Accelerate does
  /// where one process reads for all; false: to a whole batch.
  bool short_end = false;
  bool drop_last = false;  ///< rows that do not suffice for all ranks are left out
  int64_t batch_size = 0;  ///< rows of the loader's batches; 0: as the first one
};

/// One rank's batches out of all of a loader, one by one. Keeps the first batch of every rank, for
/// the end. ValueError: split_batches with a batch size that the ranks do not divide.
template <typename Batch>
class BatchShards {
 public:
  using Rows = BatchRows<Batch>;
  using Source = std::function<std::optional<Batch>()>;

  BatchShards(const BatchShardOptions& options, Source source)
      : options_(options), source_(std::move(source)), batch_size_(options.batch_size) {}

  std::optional<Batch> next() {
    while (ready_.empty() && !ended_) read();
    if (ready_.empty()) return std::nullopt;
    auto batch = std::move(ready_.front());
    ready_.pop_front();
    given_on_all_ranks_ = on_all_ranks_ || !ready_.empty();
    return batch;
  }

  /// The batch that next() gave: no rank lacks one in its step.
  bool on_all_ranks() const { return given_on_all_ranks_; }

  /// After the end: how many rows of the last step, over all ranks, are no repetition; 0: all of
  /// them.
  int64_t remainder() const { return remainder_; }

 private:
  void read() {
    auto batch = source_();
    if (!batch) {
      ended_ = true;
      if (group_rows_ == 0 || options_.drop_last) return;
      remainder_ = group_rows_;
      options_.split_batches ? end_of_parts() : end_of_turns();
      return;
    }
    if (batch_size_ == 0) batch_size_ = Rows::count(*batch);
    if (num_read_ < (options_.split_batches ? 1 : options_.size)) first_.push_back(*batch);
    last_ = std::move(*batch);
    group_rows_ += Rows::count(*last_);
    options_.split_batches ? take_part() : take_turn();
    ++num_read_;
  }

  bool last_is_whole() const { return Rows::count(*last_) == batch_size_; }

  void take_turn() {
    const auto turn = num_read_ % options_.size;
    if (turn == options_.rank) mine_ = last_;
    if (turn != options_.size - 1 || !last_is_whole()) return;
    ready_.push_back(std::move(*mine_));
    mine_.reset();
    group_rows_ = 0;
  }

  /// The ranks have had their turns only in part, or the last batch is short.
  void end_of_turns() {
    const bool whole = mine_ && Rows::count(*mine_) == batch_size_;
    if (mine_ && (whole || !options_.even_batches)) ready_.push_back(std::move(*mine_));
    auto turn = (num_read_ - 1) % options_.size;
    on_all_ranks_ = options_.even_batches || turn == options_.size - 1;
    if (!options_.even_batches) return;
    int64_t cursor = 0;
    if (!last_is_whole()) {
      const auto missing = batch_size_ - Rows::count(*last_);
      if (turn == options_.rank) ready_.push_back(completed(*last_, 0, missing));
      cursor = missing;
    }
    for (++turn; turn < options_.size; ++turn, cursor += batch_size_) {
      if (turn == options_.rank) ready_.push_back(completed(std::nullopt, cursor, batch_size_));
    }
  }

  int64_t part_size() const {
    TORCH_CHECK_VALUE(batch_size_ % options_.size == 0, "split_batches: expected batches that the ",
                      options_.size, " ranks can divide, got ", batch_size_,
                      " rows; change the loader's batch "
                      "size, or set split_batches to false");
    return batch_size_ / options_.size;
  }

  void take_part() {
    const auto size = part_size();
    if (!last_is_whole()) return;
    ready_.push_back(Rows::slice(*last_, options_.rank * size, (options_.rank + 1) * size));
    group_rows_ = 0;
  }

  void end_of_parts() {
    const auto rows = Rows::count(*last_);
    const auto size = options_.short_end ? (rows + options_.size - 1) / options_.size : part_size();
    const auto begin = options_.rank * size;
    if (options_.even_batches) {
      const auto missing = size * options_.size - rows;
      ready_.push_back(Rows::slice(completed(last_, 0, missing), begin, begin + size));
    } else if (on_all_ranks_ = rows > (options_.size - 1) * size; rows > begin) {
      ready_.push_back(Rows::slice(*last_, begin, std::min(begin + size, rows)));
    }
  }

  /// `batch` and `count` rows more: the first ones, over and over, from row `cursor` on.
  Batch completed(const std::optional<Batch>& batch, int64_t cursor, int64_t count) const {
    std::vector<Batch> parts;
    if (batch) parts.push_back(*batch);
    const auto pool = Rows::join(first_);
    const auto rows = Rows::count(pool);
    while (count > 0) {
      const auto begin = cursor % rows, end = std::min(begin + count, rows);
      parts.push_back(Rows::slice(pool, begin, end));
      cursor += end - begin;
      count -= end - begin;
    }
    return parts.size() == 1 ? parts.front() : Rows::join(parts);
  }

  BatchShardOptions options_;
  Source source_;
  int64_t batch_size_;
  int64_t num_read_ = 0;
  int64_t group_rows_ = 0;  // of the step under way, over all ranks
  int64_t remainder_ = 0;
  bool ended_ = false;
  bool on_all_ranks_ = true, given_on_all_ranks_ = true;
  std::vector<Batch> first_;
  std::optional<Batch> last_, mine_;
  std::deque<Batch> ready_;
};

}  // namespace tessera::train
