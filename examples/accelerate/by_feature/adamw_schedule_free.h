// Schedule-free AdamW (Defazio et al., The Road Less Scheduled, NeurIPS 2024, section 3 and
// algorithm 1) as an optimizer of the user's own, in the place of Python's package schedulefree.
#pragma once

#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>
#include <torch/optim/optimizer.h>
#include <torch/serialize/archive.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

struct ScheduleFreeOptions : torch::optim::OptimizerCloneableOptions<ScheduleFreeOptions> {
  ScheduleFreeOptions(double rate, int64_t warmup) : lr(rate), warmup_steps(warmup) {}
  double get_lr() const override { return lr; }
  void set_lr(double rate) override { lr = rate; }
  double lr, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0;
  int64_t warmup_steps;  ///< in which the rate grows to `lr`
};

/// Gradients are taken at y, which lies between z, where plain steps go, and x, the mean of z. A
/// parameter holds y after train(), and x, which is to be evaluated and saved, after eval().
class AdamWScheduleFree : public torch::optim::Optimizer {
 public:
  AdamWScheduleFree(std::vector<torch::Tensor> parameters, const ScheduleFreeOptions& options)
      : Optimizer(std::move(parameters), std::make_unique<ScheduleFreeOptions>(options)),
        options_(options) {}

  void train() {
    if (!std::exchange(training_, true)) move_to_z(1 - options_.beta1);
  }
  void eval() {
    if (std::exchange(training_, false)) move_to_z(1 - 1 / options_.beta1);
  }

  torch::Tensor step(LossClosure closure = nullptr) override {
    TORCH_CHECK_VALUE(training_, "step: call train() of the optimizer before training");
    auto loss = closure ? closure() : torch::Tensor();
    const torch::NoGradGuard no_grad;
    const auto& o = options_;
    const auto done = static_cast<double>(++num_steps_);
    const double rate =
        o.lr * std::min(1.0, done / static_cast<double>(std::max<int64_t>(1, o.warmup_steps)));
    largest_rate_ = std::max(largest_rate_, rate);
    const double weight = largest_rate_ * largest_rate_;
    weights_ += weight;
    const double share = weights_ > 0 ? weight / weights_ : 0;  // of z in the mean
    for (auto& parameter : every_parameter()) {
      if (!parameter.grad().defined()) continue;
      auto& [z, squares] = moments_[parameter.unsafeGetTensorImpl()];
      if (!z.defined()) z = parameter.detach().clone(), squares = at::zeros_like(z);
      const auto gradient = parameter.grad();
      squares.mul_(o.beta2).addcmul_(gradient, gradient, 1 - o.beta2);
      auto direction = gradient / (squares / (1 - std::pow(o.beta2, done))).sqrt_().add_(o.eps);
      if (o.weight_decay != 0) direction.add_(parameter, o.weight_decay);
      parameter.lerp_(z, share).add_(direction, rate * (o.beta1 * (1 - share) - 1));
      z.sub_(direction, rate);
    }
    return loss;
  }

  void save(torch::serialize::OutputArchive& archive) const override {
    archive.write("counts", at::tensor({static_cast<double>(num_steps_), largest_rate_, weights_,
                                        training_ ? 1.0 : 0.0},
                                       torch::kFloat64));
    int i = 0;
    for (const auto& parameter : every_parameter()) {
      const auto found = moments_.find(parameter.unsafeGetTensorImpl());
      if (found != moments_.end()) {
        archive.write(fmt::format("z_{}", i), found->second.first);
        archive.write(fmt::format("squares_{}", i), found->second.second);
      }
      ++i;
    }
  }

  void load(torch::serialize::InputArchive& archive) override {
    torch::Tensor counts;
    archive.read("counts", counts);
    num_steps_ = std::lround(counts[0].item<double>());
    largest_rate_ = counts[1].item<double>();
    weights_ = counts[2].item<double>();
    training_ = counts[3].item<double>() != 0;
    moments_.clear();
    int i = 0;
    for (const auto& parameter : every_parameter()) {
      torch::Tensor z;
      if (archive.try_read(fmt::format("z_{}", i), z)) {
        auto& moments = moments_[parameter.unsafeGetTensorImpl()];
        moments.first = z;
        archive.read(fmt::format("squares_{}", i), moments.second);
      }
      ++i;
    }
  }

 private:
  std::vector<torch::Tensor> every_parameter() const {
    std::vector<torch::Tensor> all;
    for (const auto& group : param_groups()) {
      all.insert(all.end(), group.params().begin(), group.params().end());
    }
    return all;
  }

  void move_to_z(double share) {
    const torch::NoGradGuard no_grad;
    for (auto& parameter : every_parameter()) {
      const auto found = moments_.find(parameter.unsafeGetTensorImpl());
      if (found != moments_.end()) parameter.lerp_(found->second.first, share);
    }
  }

  ScheduleFreeOptions options_;
  std::unordered_map<const void*, std::pair<torch::Tensor, torch::Tensor>> moments_;  // z, squares
  int64_t num_steps_ = 0;
  double largest_rate_ = 0, weights_ = 0;
  bool training_ = false;
};
