// Learning rate schedules with the arithmetic of Python's torch.optim.lr_scheduler, whose names and
// defaults these are. LibTorch's own (torch::optim::StepLR, ..) count the step that Python takes
// when a scheduler is made as the first step(), so they decay one call later.
//
//     lr_scheduler::LRScheduler scheduler(optimizer, lr_scheduler::StepLR{.step_size = 30});
#pragma once

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <variant>
#include <vector>

namespace tessera::lr_scheduler {

/// The initial rate times lr_lambda(step): one function for all parameter groups, or one for each.
struct LambdaLR {
  std::vector<std::function<double(int64_t)>> lr_lambda;
};
struct StepLR {
  int64_t step_size = 1;
  double gamma = 0.1;
};
struct MultiStepLR {
  std::vector<int64_t> milestones;
  double gamma = 0.1;
};
struct ExponentialLR {
  double gamma = 0.1;
};
struct CosineAnnealingLR {
  int64_t T_max = 1;
  double eta_min = 0;
};
struct LinearLR {
  double start_factor = 1.0 / 3, end_factor = 1;
  int64_t total_iters = 5;
};

enum class Anneal { cos, linear };
/// Changes beta1 (Adam, AdamW) or the momentum (SGD, RMSprop), too, if cycle_momentum.
struct OneCycleLR {
  double max_lr = 0;
  int64_t total_steps = 0;  ///< step() may be called one time less
  double pct_start = 0.3;
  Anneal anneal_strategy = Anneal::cos;
  bool cycle_momentum = true;
  double base_momentum = 0.85, max_momentum = 0.95;
  double div_factor = 25, final_div_factor = 1e4;
  bool three_phase = false;
};

/// What one step of a SequentialLR may be.
using Chainable = std::variant<LambdaLR, StepLR, MultiStepLR, ExponentialLR, CosineAnnealingLR,
                               LinearLR, OneCycleLR>;

/// schedules[i + 1] takes over, from its own beginning, at step milestones[i].
struct SequentialLR {
  std::vector<Chainable> schedules;
  std::vector<int64_t> milestones;
};

enum class Mode { min, max };
enum class ThresholdMode { rel, abs };
/// Stepped with a metric: step(validation_loss).
struct ReduceLROnPlateau {
  Mode mode = Mode::min;
  double factor = 0.1;
  int64_t patience = 10;
  double threshold = 1e-4;
  ThresholdMode threshold_mode = ThresholdMode::rel;
  int64_t cooldown = 0;
  double min_lr = 0;
  double eps = 1e-8;
};

using Schedule = std::variant<LambdaLR, StepLR, MultiStepLR, ExponentialLR, CosineAnnealingLR,
                              LinearLR, OneCycleLR, SequentialLR, ReduceLROnPlateau>;

/// Sets the learning rates of an optimizer, which must live as long.
class LRScheduler {
 public:
  /// Sets the first rates. ValueError: options that make no schedule, in one line.
  LRScheduler(torch::optim::Optimizer& optimizer, Schedule schedule);

  /// ValueError: of a ReduceLROnPlateau, or a OneCycleLR past its end.
  void step();
  void step(double metric);  ///< ValueError: of another than ReduceLROnPlateau

  std::vector<double> get_last_lr() const;  ///< of each parameter group
  int64_t step_count() const { return step_count_; }
  std::optional<int64_t> total_steps() const;  ///< of a OneCycleLR

  nlohmann::json state_dict() const;
  void load_state_dict(const nlohmann::json& state);

 private:
  struct Stage {  // one schedule of a sequence; of others: the only one
    Chainable schedule;
    std::vector<double> base_lrs;
    int64_t last_epoch = -1;
  };

  void start(const Stage& stage);
  std::vector<double> rates(const Stage& stage, bool initial) const;
  std::vector<double> first_rates(const Stage& stage) const;
  void set_rates(const std::vector<double>& rates);
  void set_momentum(const OneCycleLR& schedule, int64_t epoch);
  Stage& stage_at(int64_t epoch);
  void watch(const ReduceLROnPlateau& schedule, double metric);

  torch::optim::Optimizer* optimizer_;
  Schedule schedule_;
  std::vector<Stage> stages_;
  int64_t last_epoch_ = 0, step_count_ = 1;
  // State of a ReduceLROnPlateau.
  std::optional<double> best_;
  int64_t num_bad_epochs_ = 0, cooldown_counter_ = 0;
};

}  // namespace tessera::lr_scheduler
