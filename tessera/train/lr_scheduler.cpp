#include "tessera/train/lr_scheduler.h"

#include <c10/util/Exception.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <tuple>

namespace tessera::lr_scheduler {
namespace {

constexpr double kPi = std::numbers::pi;

template <typename... Visitors>
struct Overloaded : Visitors... {
  using Visitors::operator()...;
};
template <typename... Visitors>
Overloaded(Visitors...) -> Overloaded<Visitors...>;

std::vector<double> current_rates(const torch::optim::Optimizer& optimizer) {
  std::vector<double> rates;
  for (const auto& group : optimizer.param_groups()) rates.push_back(group.options().get_lr());
  return rates;
}

std::vector<double> times(std::vector<double> rates, double factor) {
  for (auto& rate : rates) rate *= factor;
  return rates;
}

double anneal(Anneal how, double start, double end, double share) {
  if (how == Anneal::linear) return (end - start) * share + start;
  return end + (start - end) / 2.0 * (std::cos(kPi * share) + 1);
}

/// Where in its cycle a OneCycleLR is: what it goes from and to, and how far it is.
struct Place {
  int phase = 0;
  double share = 0;
};
Place place_of(const OneCycleLR& schedule, int64_t epoch) {
  const auto total = static_cast<double>(schedule.total_steps);
  std::vector<double> ends{schedule.pct_start * total - 1};
  if (schedule.three_phase) ends.push_back(2 * schedule.pct_start * total - 2);
  ends.push_back(total - 1);
  double start = 0;
  const auto step = static_cast<double>(epoch);
  for (size_t i = 0; i < ends.size(); start = ends[i++]) {
    if (step > ends[i] && i + 1 < ends.size()) continue;
    return {static_cast<int>(i), (step - start) / (ends[i] - start)};
  }
  return {};
}

double one_cycle_rate(const OneCycleLR& schedule, int64_t epoch) {
  const double first = schedule.max_lr / schedule.div_factor;
  const double last = first / schedule.final_div_factor;
  const std::vector<double> corners = schedule.three_phase
                                          ? std::vector{first, schedule.max_lr, first, last}
                                          : std::vector{first, schedule.max_lr, last};
  const auto place = place_of(schedule, epoch);
  const auto phase = static_cast<size_t>(place.phase);
  return anneal(schedule.anneal_strategy, corners[phase], corners[phase + 1], place.share);
}

void check(const Chainable& schedule, size_t num_groups) {
  std::visit(
      Overloaded{
          [&](const LambdaLR& of) {
            TORCH_CHECK_VALUE(of.lr_lambda.size() == 1 || of.lr_lambda.size() == num_groups,
                              "LambdaLR: expected one function, or one for each of ", num_groups,
                              " parameter groups, got ", of.lr_lambda.size());
          },
          [](const StepLR& of) {
            TORCH_CHECK_VALUE(of.step_size > 0, "StepLR: expected a step_size of at least 1, got ",
                              of.step_size);
          },
          [](const CosineAnnealingLR& of) {
            TORCH_CHECK_VALUE(of.T_max > 0,
                              "CosineAnnealingLR: expected a T_max of at least 1, got ", of.T_max);
          },
          [](const LinearLR& of) {
            TORCH_CHECK_VALUE(
                of.start_factor > 0 && of.start_factor <= 1 && of.end_factor >= 0 &&
                    of.end_factor <= 1,
                "LinearLR: expected factors of at most 1 (start_factor above 0), got ",
                of.start_factor, " and ", of.end_factor);
          },
          [](const OneCycleLR& of) {
            TORCH_CHECK_VALUE(
                of.total_steps > 0 && of.pct_start >= 0 && of.pct_start <= 1,
                "OneCycleLR: expected total_steps above 0 and a pct_start in 0..1, got ",
                of.total_steps, " and ", of.pct_start);
          },
          [](const auto&) {}},
      schedule);
}

}  // namespace

LRScheduler::LRScheduler(torch::optim::Optimizer& optimizer, Schedule schedule)
    : optimizer_(&optimizer), schedule_(std::move(schedule)) {
  const auto add = [&](const Chainable& one) {
    check(one, optimizer.param_groups().size());
    Stage stage{.schedule = one, .base_lrs = current_rates(optimizer)};
    if (const auto* cycle = std::get_if<OneCycleLR>(&one)) {
      for (auto& rate : stage.base_lrs) rate = cycle->max_lr / cycle->div_factor;
    }
    stages_.push_back(std::move(stage));
  };
  std::visit(Overloaded{[&](const SequentialLR& of) {
                          TORCH_CHECK_VALUE(
                              of.schedules.size() == of.milestones.size() + 1,
                              "SequentialLR: expected one schedule more than milestones, got ",
                              of.schedules.size(), " and ", of.milestones.size());
                          for (const auto& one : of.schedules) add(one);
                        },
                        [](const ReduceLROnPlateau& of) {
                          TORCH_CHECK_VALUE(of.factor < 1,
                                            "ReduceLROnPlateau: expected a factor below 1, got ",
                                            of.factor);
                        },
                        [&](const auto& one) { add(one); }},
             schedule_);
  if (stages_.empty()) return;
  auto& first = stage_at(0);
  first.last_epoch = 0;
  set_rates(first.base_lrs);
  set_rates(rates(first, /*initial=*/true));
  start(first);
}

void LRScheduler::start(const Stage& stage) {
  if (const auto* cycle = std::get_if<OneCycleLR>(&stage.schedule)) {
    set_momentum(*cycle, stage.last_epoch);
  }
}

std::vector<double> LRScheduler::rates(const Stage& stage, bool initial) const {
  const auto now = current_rates(*optimizer_);
  const auto epoch = stage.last_epoch;
  const auto e = static_cast<double>(epoch);
  const auto each = [&](const auto& rate_of) {
    std::vector<double> next;
    for (size_t i = 0; i < now.size(); ++i) next.push_back(rate_of(i));
    return next;
  };
  return std::visit(
      Overloaded{
          [&](const LambdaLR& of) {
            return each([&](size_t i) {
              return stage.base_lrs[i] * of.lr_lambda[of.lr_lambda.size() == 1 ? 0 : i](epoch);
            });
          },
          [&](const StepLR& of) {
            return epoch == 0 || epoch % of.step_size != 0 ? now : times(now, of.gamma);
          },
          [&](const MultiStepLR& of) {
            const auto count = std::ranges::count(of.milestones, epoch);
            return count == 0 ? now : times(now, std::pow(of.gamma, static_cast<double>(count)));
          },
          [&](const ExponentialLR& of) { return initial ? now : times(now, of.gamma); },
          [&](const CosineAnnealingLR& of) {
            if (initial) return now;
            const auto t = static_cast<double>(of.T_max);
            if ((epoch - 1 - of.T_max) % (2 * of.T_max) == 0) {
              return each([&](size_t i) {
                return now[i] + (stage.base_lrs[i] - of.eta_min) * (1 - std::cos(kPi / t)) / 2;
              });
            }
            return each([&](size_t i) {
              return (1 + std::cos(kPi * e / t)) / (1 + std::cos(kPi * (e - 1) / t)) *
                         (now[i] - of.eta_min) +
                     of.eta_min;
            });
          },
          [&](const LinearLR& of) {
            if (epoch == 0) return times(now, of.start_factor);
            if (initial || epoch > of.total_iters) return now;
            const double range = of.end_factor - of.start_factor;
            return times(now, 1.0 + range / (static_cast<double>(of.total_iters) * of.start_factor +
                                             (e - 1) * range));
          },
          [&](const OneCycleLR& of) {
            TORCH_CHECK_VALUE(epoch <= of.total_steps, "OneCycleLR: expected at most ",
                              of.total_steps, " steps, got step ", epoch);
            return each([&](size_t) { return one_cycle_rate(of, epoch); });
          }},
      stage.schedule);
}

/// Where a sequence comes to a schedule: its closed form at step 0.
std::vector<double> LRScheduler::first_rates(const Stage& stage) const {
  if (const auto* linear = std::get_if<LinearLR>(&stage.schedule)) {
    return times(stage.base_lrs, linear->start_factor);
  }
  if (const auto* steps = std::get_if<MultiStepLR>(&stage.schedule)) {
    const auto passed = std::ranges::count_if(steps->milestones, [](auto at) { return at <= 0; });
    return times(stage.base_lrs, std::pow(steps->gamma, static_cast<double>(passed)));
  }
  const bool own = std::holds_alternative<LambdaLR>(stage.schedule) ||
                   std::holds_alternative<OneCycleLR>(stage.schedule);
  return own ? rates(stage, /*initial=*/false) : stage.base_lrs;
}

void LRScheduler::set_rates(const std::vector<double>& rates) {
  auto& groups = optimizer_->param_groups();
  for (size_t i = 0; i < groups.size(); ++i) groups[i].options().set_lr(rates[i]);
}

void LRScheduler::set_momentum(const OneCycleLR& schedule, int64_t epoch) {
  if (!schedule.cycle_momentum) return;
  const double high = schedule.max_momentum, low = schedule.base_momentum;
  const std::vector<double> corners =
      schedule.three_phase ? std::vector{high, low, high, high} : std::vector{high, low, high};
  const auto place = place_of(schedule, epoch);
  const auto phase = static_cast<size_t>(place.phase);
  const double momentum =
      anneal(schedule.anneal_strategy, corners[phase], corners[phase + 1], place.share);
  for (auto& group : optimizer_->param_groups()) {
    auto* options = &group.options();
    if (auto* adamw = dynamic_cast<torch::optim::AdamWOptions*>(options)) {
      adamw->betas({momentum, std::get<1>(adamw->betas())});
    } else if (auto* adam = dynamic_cast<torch::optim::AdamOptions*>(options)) {
      adam->betas({momentum, std::get<1>(adam->betas())});
    } else if (auto* sgd = dynamic_cast<torch::optim::SGDOptions*>(options)) {
      sgd->momentum(momentum);
    } else if (auto* rmsprop = dynamic_cast<torch::optim::RMSpropOptions*>(options)) {
      rmsprop->momentum(momentum);
    } else {
      TORCH_CHECK_VALUE(false,
                        "OneCycleLR: expected an optimizer with momentum or beta1 (Adam, AdamW, "
                        "SGD, RMSprop), or cycle_momentum = false");
    }
  }
}

LRScheduler::Stage& LRScheduler::stage_at(int64_t epoch) {
  const auto* sequence = std::get_if<SequentialLR>(&schedule_);
  if (sequence == nullptr) return stages_.front();
  const auto passed = std::ranges::upper_bound(sequence->milestones, epoch);
  return stages_[static_cast<size_t>(passed - sequence->milestones.begin())];
}

void LRScheduler::step() {
  TORCH_CHECK_VALUE(!stages_.empty(), "ReduceLROnPlateau: expected step(metric), got step()");
  ++last_epoch_;
  ++step_count_;
  auto& stage = stage_at(last_epoch_);
  const auto* sequence = std::get_if<SequentialLR>(&schedule_);
  const bool begins =
      sequence != nullptr && std::ranges::count(sequence->milestones, last_epoch_) > 0;
  if (begins) {
    stage.last_epoch = 0;
    set_rates(first_rates(stage));
  } else {
    ++stage.last_epoch;
    set_rates(rates(stage, /*initial=*/false));
  }
  start(stage);
}

void LRScheduler::step(double metric) {
  const auto* plateau = std::get_if<ReduceLROnPlateau>(&schedule_);
  TORCH_CHECK_VALUE(plateau != nullptr,
                    "LRScheduler: expected step(), got step(metric), which is ReduceLROnPlateau's");
  ++last_epoch_;
  ++step_count_;
  watch(*plateau, metric);
}

void LRScheduler::watch(const ReduceLROnPlateau& schedule, double metric) {
  const double sign = schedule.mode == Mode::min ? -1 : 1;
  const auto is_better = [&](double best) {
    const double bound = schedule.threshold_mode == ThresholdMode::rel
                             ? best * (1.0 + sign * schedule.threshold)
                             : best + sign * schedule.threshold;
    return schedule.mode == Mode::min ? metric < bound : metric > bound;
  };
  if (!std::isnan(metric) && (!best_ || is_better(*best_))) {
    best_ = metric;
    num_bad_epochs_ = 0;
  } else {
    ++num_bad_epochs_;
  }
  if (cooldown_counter_ > 0) {
    --cooldown_counter_;
    num_bad_epochs_ = 0;
  }
  if (num_bad_epochs_ <= schedule.patience) return;
  auto next = current_rates(*optimizer_);
  for (auto& rate : next) {
    const double lower = std::max(rate * schedule.factor, schedule.min_lr);
    if (rate - lower > schedule.eps) rate = lower;
  }
  set_rates(next);
  cooldown_counter_ = schedule.cooldown;
  num_bad_epochs_ = 0;
}

std::vector<double> LRScheduler::get_last_lr() const { return current_rates(*optimizer_); }

std::optional<int64_t> LRScheduler::total_steps() const {
  const auto* cycle = std::get_if<OneCycleLR>(&schedule_);
  return cycle == nullptr ? std::nullopt : std::optional(cycle->total_steps);
}

nlohmann::json LRScheduler::state_dict() const {
  auto stages = nlohmann::json::array();
  for (const auto& stage : stages_) {
    stages.push_back({{"last_epoch", stage.last_epoch}, {"base_lrs", stage.base_lrs}});
  }
  nlohmann::json state{{"last_epoch", last_epoch_},
                       {"step_count", step_count_},
                       {"num_bad_epochs", num_bad_epochs_},
                       {"cooldown_counter", cooldown_counter_},
                       {"stages", stages}};
  if (best_) state["best"] = *best_;
  return state;
}

void LRScheduler::load_state_dict(const nlohmann::json& state) {
  const auto& stages = state.at("stages");
  TORCH_CHECK_VALUE(stages.size() == stages_.size(),
                    "load_state_dict: expected the state of a schedule of ", stages_.size(),
                    " parts, got one of ", stages.size());
  for (size_t i = 0; i < stages_.size(); ++i) {
    stages_[i].last_epoch = stages[i].at("last_epoch");
    stages_[i].base_lrs = stages[i].at("base_lrs").get<std::vector<double>>();
  }
  last_epoch_ = state.at("last_epoch");
  step_count_ = state.at("step_count");
  num_bad_epochs_ = state.at("num_bad_epochs");
  cooldown_counter_ = state.at("cooldown_counter");
  best_ = state.contains("best") ? std::optional<double>(state["best"]) : std::nullopt;
  if (stages_.empty()) return;
  start(stage_at(last_epoch_));  // the momentum of a OneCycleLR is no state of the optimizer's
}

}  // namespace tessera::lr_scheduler
