// What Accelerator::prepare gives back for a data loader.
#pragma once

#include <torch/data/iterator.h>

#include <iterator>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "tessera/train/accelerator_core.h"
#include "tessera/train/batch_shards.h"

namespace tessera {

/// A data loader of LibTorch's, or a pointer to one.
template <typename T>
concept HasBatches = requires {
  typename T::BatchType;
};
template <typename T>
concept LoaderHolder = HasBatches<T> || requires(T& holder) {
  requires HasBatches<std::remove_reference_t<decltype(*holder)>>;
};

template <typename T>
auto& loader_of(T& holder) {
  if constexpr (HasBatches<T>) {
    return holder;
  } else {
    return *holder;
  }
}

/// What LibTorch's loaders keep to themselves.
template <typename Loader>
struct LoaderAccess : Loader {
  /// Drops what the workers of a loop that was left have read.
  static void drain(Loader& loader) { (loader.*(&LoaderAccess::shuttle_)).drain(); }

  static int64_t num_rows(const Loader& loader) {
    const auto& dataset = loader.*(&LoaderAccess::main_thread_dataset_);
    TORCH_CHECK_VALUE(
        dataset != nullptr,
        "size: expected a loader without workers, whose data set is here to be asked");
    if constexpr (requires { dataset->size(); }) {
      const auto size = dataset->size();
      TORCH_CHECK_VALUE(size, "size: expected a data set that knows its size");
      return static_cast<int64_t>(*size);
    } else {
      TORCH_CHECK_VALUE(false, "size: expected a data set that knows its size");
    }
  }
};

/// This rank's batches of a data loader, on its device: `for (auto& batch : loader)`. Every rank
/// reads the whole loader and keeps its rows (dispatch_batches: rank 0 reads). One pass at a time: ValueError for one
/// inside of another.
template <typename Loader>
class PreparedLoader {
 public:
  using Batch = typename Loader::BatchType;
  using Rows = BatchRows<Batch>;

  PreparedLoader(std::shared_ptr<AcceleratorCore> core, Loader& base)
      : core_(std::move(core)), base_(&base), record_(core_->add_loader()) {}

  /// One pass over the data; reads one batch ahead, to know the last one.
  class Pass {
   public:
    Pass(AcceleratorCore& core, Loader& base, const torch::Tensor& replay)
        : core_(core), state_(core.begin_pass()) {
      const auto& options = core_.options();
      state_->generator = core_.in_step_with_rank_0(
          [&] {
            if (options.dispatch_batches && core_.axis().rank() != 0) return;
            LoaderAccess<Loader>::drain(base);
            at_.emplace(base.begin());
          },
          replay);
      if (at_) end_.emplace(base.end());
      train::BatchShardOptions sharding{
          .rank = core_.axis().rank(),
          .size = core_.axis().size(),
          .split_batches = options.split_batches,
          // One process gets the loader's batches as they are.
          .even_batches = options.even_batches && core_.axis().size() > 1,
          .drop_last = base.options().drop_last,
          .batch_size = static_cast<int64_t>(base.options().batch_size)};
      if (options.dispatch_batches) {
        per_step_ = options.split_batches ? 1 : sharding.size;
        sharding.batch_size *= per_step_;
        sharding.split_batches = sharding.even_batches = sharding.short_end = true;
        shards_.emplace(sharding, [this] { return dispatched(); });
      } else {
        shards_.emplace(sharding, [this] { return read(); });
      }
      advance();
    }

    /// The next batch to be used; none at the end.
    bool take() {
      if (!ahead_) return false;
      current_ = std::move(ahead_);
      state_->on_all_ranks = shards_->on_all_ranks();
      ++state_->position;
      advance();
      return true;
    }
    const std::shared_ptr<LoaderPass>& state() const { return state_; }
    Batch& current() { return *current_; }

   private:
    std::optional<Batch> read() {
      if (*at_ == *end_) return std::nullopt;
      auto batch = std::move(**at_);
      ++*at_;
      return batch;
    }

    /// What rank 0 reads for one step of all ranks.
    std::optional<Batch> dispatched() {
      std::vector<Batch> read_now;
      for (int64_t i = 0; at_ && i < per_step_; ++i) {
        auto batch = read();
        if (!batch) break;
        read_now.push_back(std::move(*batch));
      }
      auto rows = torch::zeros({1}, torch::kInt64);
      Batch whole;
      if (!read_now.empty()) {
        whole = Rows::join(read_now);
        rows.fill_(Rows::count(whole));
      }
      core_.axis().broadcast(rows, 0).wait();
      const auto count = rows.item<int64_t>();
      if (count == 0) return std::nullopt;
      Rows::resize(whole, count);
      std::vector<torch::Tensor*> tensors;
      Rows::for_each_tensor(whole, [&](torch::Tensor& tensor) { tensors.push_back(&tensor); });
      core_.broadcast(tensors);
      return whole;
    }

    void advance() {
      ahead_ = shards_->next();
      if (!ahead_) {
        state_->at_end = true, state_->remainder = shards_->remainder();
        return;
      }
      Rows::for_each_tensor(
          *ahead_, [&](torch::Tensor& tensor) { tensor = tensor.to(core_.mesh().device()); });
    }

    AcceleratorCore& core_;
    std::shared_ptr<LoaderPass> state_;
    std::optional<torch::data::Iterator<Batch>> at_, end_;
    int64_t per_step_ = 1;
    std::optional<train::BatchShards<Batch>> shards_;
    std::optional<Batch> ahead_, current_;
  };

  class Iterator {
   public:
    explicit Iterator(std::shared_ptr<Pass> pass) : pass_(std::move(pass)) { ++*this; }
    Batch& operator*() const { return pass_->current(); }
    Iterator& operator++() {
      if (!pass_->take()) pass_.reset();
      return *this;
    }
    bool operator==(std::default_sentinel_t) const { return pass_ == nullptr; }

   private:
    std::shared_ptr<Pass> pass_;
  };

  /// A loop that was left by `break` is over: its other batches are dropped.
  Iterator begin() {
    const auto under_way = record_->pass.lock();
    TORCH_CHECK_VALUE(!under_way || under_way->at_end,
                      "begin: expected the loop over this loader to have ended, as another would "
                      "take its batches; prepare a second loader for a loop inside of it");
    const auto resumed = std::exchange(record_->resumed, std::nullopt);
    auto skip = std::exchange(skip_, 0);
    if (resumed && core_->options().use_stateful_dataloader && skip == 0) skip = resumed->position;
    auto pass =
        std::make_shared<Pass>(*core_, *base_, resumed ? resumed->generator : torch::Tensor());
    for (; skip > 0; --skip) pass->take();
    record_->pass = pass->state();
    return Iterator(std::move(pass));
  }
  std::default_sentinel_t end() const { return {}; }

  /// Batches of a pass on this rank. ValueError: a loader with workers, or data of unknown size.
  int64_t size() const {
    const auto& options = core_->options();
    const int64_t rows = num_rows(), batch = static_cast<int64_t>(base_->options().batch_size);
    const bool drop_last = base_->options().drop_last;
    const int64_t whole = drop_last ? rows / batch : (rows + batch - 1) / batch;
    const int64_t ranks = core_->axis().size(), rank = core_->axis().rank();
    if (options.split_batches || ranks == 1) return whole;
    if (drop_last) return whole / ranks;
    const bool more =
        options.even_batches || options.dispatch_batches ? whole % ranks > 0 : rank < whole % ranks;
    return whole / ranks + (more ? 1 : 0);
  }
  /// Examples in the data set; the same errors.
  int64_t num_rows() const { return LoaderAccess<Loader>::num_rows(*base_); }

  void skip(int64_t num_batches) { skip_ = num_batches; }

 private:
  std::shared_ptr<AcceleratorCore> core_;
  Loader* base_;
  std::shared_ptr<LoaderRecord> record_;
  int64_t skip_ = 0;
};

}  // namespace tessera
