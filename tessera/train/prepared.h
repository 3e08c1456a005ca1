// What Accelerator::prepare gives back for a model, an optimizer and a scheduler; prepared_loader.h:
// for a data loader.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/schedulers/lr_scheduler.h>

#include <concepts>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <type_traits>
#include <utility>
#include <vector>

#include "tessera/nn/dropout.h"
#include "tessera/nn/hooked.h"
#include "tessera/train/accelerator_core.h"

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

  PreparedModel(std::shared_ptr<AcceleratorCore> core, std::shared_ptr<ModelRecord> record)
      : core_(std::move(core)),
        record_(std::move(record)),
        root_(std::dynamic_pointer_cast<Root>(record_->root)) {}

  template <typename... Args>
  auto operator()(Args... args) {
    const auto autocast = core_->autocast();
    const nn::RandomScope random(random_context(args...));
    const auto cast_input = [&](torch::Tensor& input) { input = core_->cast_input(input); };
    (nn::visit_tensors(args, cast_input), ...);
    core_->before_forward(*record_);
    auto result = root_(std::move(args)...);
    core_->after_forward(*record_);
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
  const std::shared_ptr<ModelRecord>& record() const { return record_; }

 private:
  template <typename First, typename... Rest>
  nn::RandomContext random_context(const First& first, const Rest&...) const {
    // Of several forwards before a backward each draws its own numbers.
    constexpr int kForwardBits = 40;
    nn::RandomContext context{
        .seed = core_->options().seed,
        .step = core_->num_micro_batches() + (record_->num_forwards++ << kForwardBits)};
    if constexpr (std::same_as<First, torch::Tensor>) {
      if (first.defined() && first.dim() > 0) {
        context.first_row = core_->axis().rank() * first.size(0);
      }
    }
    return context;
  }

  std::shared_ptr<AcceleratorCore> core_;
  std::shared_ptr<ModelRecord> record_;
  nn::Hooked<Root> root_;
};

// ---- optimizers and schedulers -----------------------------------------------------------------

/// Steps on this rank's parts; does nothing between updates (Accelerator::accumulate).
class PreparedOptimizer {
 public:
  PreparedOptimizer(std::shared_ptr<AcceleratorCore> core, std::shared_ptr<OptimizerRecord> record)
      : core_(std::move(core)), record_(std::move(record)) {}

  /// One update. fp16: none if gradients overflowed. With DeepSpeed's gradient_clipping they are
  /// clipped first. `closure` computes gradients and gives the loss; LBFGS calls it several times
  /// (and sees the mean of the loss over the processes), others once.
  void step(const std::function<torch::Tensor()>& closure = nullptr) {
    core_->step(*record_, closure);
  }
  /// Call it between a step and the next backward. Gradients that no step used are dropped.
  void zero_grad() { core_->zero_grad(*record_); }
  bool step_was_skipped() const { return record_->skipped; }

  /// Does something for an optimizer that has train() and eval(), like schedule-free ones. Call them
  /// with the model's. Collective.
  void train() { core_->set_training(*record_, /*training=*/true); }
  void eval() { core_->set_training(*record_, /*training=*/false); }

  std::vector<torch::optim::OptimizerParamGroup>& param_groups() {
    return record_->base->param_groups();
  }
  torch::optim::Optimizer* operator->() const { return record_->base; }

 private:
  std::shared_ptr<AcceleratorCore> core_;
  std::shared_ptr<OptimizerRecord> record_;
};

/// Reads and sets what LibTorch's schedulers keep to themselves.
struct SchedulerAccess : torch::optim::LRScheduler {
  static unsigned& count(torch::optim::LRScheduler& scheduler) {
    return scheduler.*(&SchedulerAccess::step_count_);
  }
  static std::vector<double> rates(torch::optim::LRScheduler& scheduler) {
    return (scheduler.*(&SchedulerAccess::get_current_lrs))();
  }
};

/// Has a state to save: lr_scheduler::LRScheduler, or one of the user's.
template <typename T>
concept HasStateDict = requires(T& object, const T& same) {
  { same.state_dict() } -> std::convertible_to<nlohmann::json>;
  object.load_state_dict(nlohmann::json());
};

template <typename T>
concept StepsAlone = requires(T& object) {
  object.step();
};

/// LibTorch's ReduceLROnPlateauScheduler is one.
template <typename T>
concept StepsByMetric = requires(T& object) {
  object.step(0.0);
};

template <HasStateDict T>
SchedulerRecord record_of(T& object) {
  return {.state = [&object] { return nlohmann::json(object.state_dict()); },
          .load = [&object](const nlohmann::json& state) { object.load_state_dict(state); }};
}

/// Steps with the optimizer: not between updates, not for one that was skipped, and once for each
/// process (AcceleratorOptions::step_scheduler_per_process).
template <typename Scheduler>
class PreparedScheduler {
 public:
  PreparedScheduler(std::shared_ptr<AcceleratorCore> core, Scheduler& base)
      : core_(std::move(core)), base_(&base) {
    if constexpr (HasStateDict<Scheduler>) {
      core_->add_scheduler(record_of(base));
    } else if constexpr (std::derived_from<Scheduler, torch::optim::LRScheduler>) {
      core_->add_scheduler(
          {.state = [&base] { return static_cast<int64_t>(SchedulerAccess::count(base)); },
           .load = [&base](const nlohmann::json& count) { SchedulerAccess::count(base) = count; }});
    } else if constexpr (StepsByMetric<Scheduler>) {
      core_->add_scheduler({.state = [metrics = metrics_] { return state_of(*metrics); },
                            .load =
                                [metrics = metrics_, &base](const nlohmann::json& state) {
                                  for (const auto metric : metrics_behind(*metrics, state)) {
                                    step_base(base, metric);
                                    metrics->push_back(metric);
                                  }
                                }});
    } else {  // is what its steps made of it
      static_assert(
          StepsAlone<Scheduler>,
          "prepare: a scheduler needs step(), step(metric), or state_dict() and load_state_dict()");
      core_->add_scheduler({.state = [steps = steps_] { return *steps; },
                            .load =
                                [steps = steps_, &base](const nlohmann::json& state) {
                                  for (auto more = steps_behind(*steps, state); more > 0; --more) {
                                    base.step(), ++*steps;
                                  }
                                }});
    }
  }

  /// step(), or step(metric) of a ReduceLROnPlateau.
  template <typename... Metric>
  void step(const Metric&... metric) {
    const auto& options = core_->options();
    int times = 1;
    if (options.step_scheduler_with_optimizer) {
      if (!core_->sync_gradients() || core_->any_skipped()) return;
      if (options.step_scheduler_per_process && !options.split_batches) {
        times = core_->axis().size();
      }
    }
    for (int i = 0; i < times; ++i) {
      if constexpr (requires { base_->total_steps(); }) {  // a cycle may end inside of an epoch
        if (base_->step_count() > base_->total_steps().value_or(base_->step_count())) return;
      }
      base_->step(metric...);
      ++*steps_;
      if constexpr (kSavesMetrics) {
        if constexpr (sizeof...(metric) == 1)
          metrics_->emplace_back(static_cast<double>(metric)...);
        if constexpr (sizeof...(metric) == 0) metrics_->emplace_back();
      }
    }
  }

  /// The rates of each parameter group.
  std::vector<double> get_last_lr() const {
    if constexpr (requires { base_->get_last_lr(); }) {
      return base_->get_last_lr();
    } else {
      static_assert(
          std::derived_from<Scheduler, torch::optim::LRScheduler>,
          "get_last_lr: this scheduler does not tell; ask its optimizer's param_groups()");
      return SchedulerAccess::rates(*base_);
    }
  }

  Scheduler* operator->() const { return base_; }

 private:
  static constexpr bool kSavesMetrics = !HasStateDict<Scheduler> && StepsByMetric<Scheduler> &&
                                        !std::derived_from<Scheduler, torch::optim::LRScheduler>;

  static void step_base(Scheduler& base, std::optional<double> metric) {
    if constexpr (StepsAlone<Scheduler>) {
      if (!metric) {
        base.step();
        return;
      }
    }
    base.step(metric.value());
  }

  std::shared_ptr<AcceleratorCore> core_;
  Scheduler* base_;
  std::shared_ptr<int64_t> steps_ = std::make_shared<int64_t>(0);
  /// Filled where they are all that there is to save.
  std::shared_ptr<Metrics> metrics_ = std::make_shared<Metrics>();
};

// ---- scopes ------------------------------------------------------------------------------------

/// One micro-batch of gradient accumulation.
class [[maybe_unused]] AccumulationScope {
 public:
  explicit AccumulationScope(AcceleratorCore& core) { core.begin_micro_batch(); }
};

/// Local SGD: inside of it each process updates its models with its own gradients; parameters are
/// averaged every `local_sgd_steps` calls of step() and at the end. Under DDP; alone it does
/// nothing. ValueError: another placement.
class LocalSGD {
 public:
  template <typename Accelerator, typename Model>
  LocalSGD(const Accelerator& accelerator, const Model& /*model*/, int64_t local_sgd_steps,
           bool enabled = true)
      : core_(accelerator.core()),
        every_(local_sgd_steps),
        enabled_(enabled && core_.axis().size() > 1) {
    if (enabled_) core_.set_local(true);
  }
  ~LocalSGD() noexcept(false) {
    if (!enabled_) return;
    core_.set_local(false);
    if (std::uncaught_exceptions() == 0) core_.average_parameters();
  }
  LocalSGD(const LocalSGD&) = delete;
  LocalSGD& operator=(const LocalSGD&) = delete;

  void step() {
    if (enabled_ && ++num_steps_ % every_ == 0) core_.average_parameters();
  }

 private:
  AcceleratorCore& core_;
  int64_t every_, num_steps_ = 0;
  bool enabled_;
};

/// Inside of it processes may have different numbers of batches: those that are through take part
/// in the others' reductions when it ends.
class JoinScope {
 public:
  explicit JoinScope(AcceleratorCore& core) : core_(core) { core.begin_join(); }
  ~JoinScope() noexcept(false) {
    if (std::uncaught_exceptions() == 0) core_.end_join();
  }
  JoinScope(const JoinScope&) = delete;
  JoinScope& operator=(const JoinScope&) = delete;

 private:
  AcceleratorCore& core_;
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
