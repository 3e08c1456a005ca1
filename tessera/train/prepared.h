// What Accelerator::prepare gives back for a model, an optimizer, a scheduler and a data loader.
#pragma once

#include <torch/data/iterator.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/schedulers/lr_scheduler.h>

#include <concepts>
#include <iterator>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "tessera/nn/dropout.h"
#include "tessera/nn/hooked.h"
#include "tessera/train/accelerator_core.h"
#include "tessera/train/batch_shards.h"

namespace tessera {

// ---- models ------------------------------------------------------------------------------------

/// nn::Hooked, TORCH_MODULE or std::shared_ptr of a module.
template <typename T>
concept ModelHolder = requires(T& holder) {
  { *holder.get() } -> std::convertible_to<torch::nn::Module&>;
};

template <ModelHolder Holder>
using ModuleOf = std::remove_reference_t<decltype(*std::declval<Holder&>().get())>;

/// A module that hooks cannot be attached to, inside one that they can.
template <typename Impl>
struct WrappedImpl : nn::Hookable {
  explicit WrappedImpl(std::shared_ptr<Impl> inner) : module(std::move(inner)) {
    register_module("module", module);
  }
  template <typename... Args>
  auto forward(Args&&... args)
      -> decltype(std::declval<Impl&>().forward(std::forward<Args>(args)...)) {
    return module->forward(std::forward<Args>(args)...);
  }
  std::shared_ptr<Impl> module;
};

/// Calls the module in this run's precision; floating-point results are float32.
template <typename Impl>
class PreparedModel {
 public:
  static constexpr bool kIsWrapped = !std::derived_from<Impl, nn::Hookable>;
  using Root = std::conditional_t<kIsWrapped, WrappedImpl<Impl>, Impl>;

  PreparedModel(std::shared_ptr<AcceleratorCore> core, std::shared_ptr<Root> root)
      : core_(std::move(core)), root_(std::move(root)) {}

  template <typename... Args>
  auto operator()(Args... args) {
    const auto autocast = core_->autocast();
    const nn::RandomScope random(random_context(args...));
    const auto cast_input = [&](torch::Tensor& input) { input = core_->cast_input(input); };
    (nn::visit_tensors(args, cast_input), ...);
    auto result = root_(std::move(args)...);
    nn::visit_tensors(result, [](torch::Tensor& output) {
      if (!output.defined()) return;
      const auto type = output.scalar_type();
      if (type == torch::kBFloat16 || type == torch::kHalf) output = output.to(torch::kFloat32);
    });
    return result;
  }

  std::shared_ptr<Impl> module() const {
    if constexpr (kIsWrapped) {
      return root_->module;
    } else {
      return root_.ptr();
    }
  }
  Impl* operator->() const { return module().get(); }

 private:
  template <typename First, typename... Rest>
  nn::RandomContext random_context(const First& first, const Rest&...) const {
    nn::RandomContext context{.seed = core_->options().seed, .step = core_->num_micro_batches()};
    if constexpr (std::same_as<First, torch::Tensor>) {
      if (first.defined() && first.dim() > 0) {
        context.first_row = core_->axis().rank() * first.size(0);
      }
    }
    return context;
  }

  std::shared_ptr<AcceleratorCore> core_;
  nn::Hooked<Root> root_;
};

// ---- optimizers and schedulers -----------------------------------------------------------------

/// Steps on this rank's slices; does nothing between updates (Accelerator::accumulate).
class PreparedOptimizer {
 public:
  PreparedOptimizer(std::shared_ptr<AcceleratorCore> core, OptimizerRecord& record)
      : core_(std::move(core)), record_(&record) {}

  /// One update; gradients are zero afterwards. fp16: none if they overflowed. With DeepSpeed's
  /// gradient_clipping they are clipped first.
  void step() { core_->step(*record_); }
  /// Gradients that no step used are dropped.
  void zero_grad() { core_->zero_grad(*record_); }
  bool step_was_skipped() const { return record_->skipped; }

  torch::optim::Optimizer* operator->() const { return record_->base; }

 private:
  std::shared_ptr<AcceleratorCore> core_;
  OptimizerRecord* record_;
};

/// Steps with the optimizer: not between updates, not for one that was skipped, and once for each
/// process (AcceleratorOptions::step_scheduler_per_process).
template <typename Scheduler>
class PreparedScheduler {
 public:
  PreparedScheduler(std::shared_ptr<AcceleratorCore> core, Scheduler& base)
      : core_(std::move(core)), base_(&base) {}

  void step() {
    const auto& options = core_->options();
    int times = 1;
    if (options.step_scheduler_with_optimizer) {
      if (!core_->sync_gradients() || core_->any_skipped()) return;
      if (options.step_scheduler_per_process && !options.split_batches) {
        times = core_->axis().size();
      }
    }
    for (int i = 0; i < times; ++i) base_->step();
  }

  Scheduler* operator->() const { return base_; }

 private:
  std::shared_ptr<AcceleratorCore> core_;
  Scheduler* base_;
};

/// Reads and sets what LibTorch's schedulers keep to themselves.
struct SchedulerAccess : torch::optim::LRScheduler {
  static SchedulerRecord record(torch::optim::LRScheduler& scheduler) {
    auto& count = scheduler.*(&SchedulerAccess::step_count_);
    return {.count = [&count] { return static_cast<int64_t>(count); },
            .set_count = [&count](int64_t value) { count = static_cast<unsigned>(value); }};
  }
};

// ---- loaders -----------------------------------------------------------------------------------

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

/// This rank's batches of a data loader, on its device: `for (auto& batch : loader)`. Every rank
/// reads the whole loader and keeps its rows (dispatch_batches: rank 0 reads). One pass at a time.
template <typename Loader>
class PreparedLoader {
 public:
  using Batch = typename Loader::BatchType;
  using Rows = BatchRows<Batch>;

  PreparedLoader(std::shared_ptr<AcceleratorCore> core, Loader& base)
      : core_(std::move(core)), base_(&base) {}

  /// One pass over the data; reads one batch ahead, to know the last one.
  class Pass {
   public:
    Pass(AcceleratorCore& core, Loader& base) : core_(core), state_(core.begin_pass()) {
      const auto& options = core_.options();
      if (!options.dispatch_batches || core_.axis().rank() == 0) {
        core_.in_step_with_rank_0([&] { at_.emplace(base.begin()); });
      } else {
        core_.in_step_with_rank_0([] {});
      }
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
      advance();
      return true;
    }
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

  Iterator begin() {
    auto pass = std::make_shared<Pass>(*core_, *base_);
    for (; skip_ > 0; --skip_) pass->take();
    return Iterator(std::move(pass));
  }
  std::default_sentinel_t end() const { return {}; }

  void skip(int64_t num_batches) { skip_ = num_batches; }

 private:
  std::shared_ptr<AcceleratorCore> core_;
  Loader* base_;
  int64_t skip_ = 0;
};

// ---- scopes ------------------------------------------------------------------------------------

/// One micro-batch of gradient accumulation.
class [[maybe_unused]] AccumulationScope {
 public:
  explicit AccumulationScope(AcceleratorCore& core) { core.begin_micro_batch(); }
};

/// Backwards in it only accumulate.
class NoSyncScope {
 public:
  explicit NoSyncScope(AcceleratorCore& core) : core_(core), before_(core.sync_gradients()) {
    core.set_sync_gradients(false);
  }
  ~NoSyncScope() { core_.set_sync_gradients(before_); }
  NoSyncScope(const NoSyncScope&) = delete;
  NoSyncScope& operator=(const NoSyncScope&) = delete;

 private:
  AcceleratorCore& core_;
  bool before_;
};

}  // namespace tessera
