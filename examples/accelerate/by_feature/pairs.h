// What the examples of this folder share, in the place of a tokenizer, a data set and BERT: generated
// pairs of sentences that mean the same or not, a small model, accuracy and F1. tests/accelerate/
// by_feature.py has the same in Python, and runs Accelerate's own examples on it.
#pragma once

#include <ATen/ops/cross_entropy_loss.h>
#include <fmt/format.h>
#include <torch/data/dataloader.h>
#include <torch/data/datasets/map.h>
#include <torch/data/samplers/base.h>
#include <torch/data/samplers/sequential.h>
#include <torch/data/transforms/stack.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "tessera/train/accelerator.h"
#include "tessera/train/lr_scheduler.h"

namespace pairs {

constexpr int64_t kLength = 10, kWords = 41, kDim = 8, kHidden = 16;
constexpr int64_t kTrainRows = 246, kEvalRows = 70, kEvalBatchSize = 32;
constexpr double kGain = 60;

/// The words after a program's name: --flag, or --name value.
class Options {
 public:
  Options(int argc, char** argv) : words_(argv + 1, argv + argc) {}
  bool has(const std::string& name) const { return std::ranges::count(words_, name) > 0; }
  std::optional<std::string> operator[](const std::string& name) const {
    const auto found = std::ranges::find(words_, name);
    if (found == words_.end() || found + 1 == words_.end()) return std::nullopt;
    return found[1];
  }

 private:
  std::vector<std::string> words_;
};

/// Some of the pairs first, first + 1, ..: words [kLength], 0 where there is none; target 0 or 1.
class Pairs : public torch::data::datasets::Dataset<Pairs> {
 public:
  explicit Pairs(std::vector<int64_t> pairs) : pairs_(std::move(pairs)) {}
  Pairs(int64_t first, int64_t count) : pairs_(static_cast<size_t>(count)) {
    std::iota(pairs_.begin(), pairs_.end(), first);
  }
  static int64_t label(int64_t i) { return (i * i / 3 + i / 2) % 2; }

  torch::data::Example<> get(size_t index) override {
    const auto i = pairs_[index];
    auto words = torch::zeros({kLength}, torch::kInt64);
    for (int64_t j = 0; j < 4 + i * 5 % 7; ++j) {
      words[j] = 1 + (i * 13 + j * 7 + label(i) * j * 3) % (kWords - 1);
    }
    return {words, torch::scalar_tensor(label(i), torch::kInt64)};
  }
  torch::optional<size_t> size() const override { return pairs_.size(); }

 private:
  std::vector<int64_t> pairs_;
};

/// Stands for shuffling: an order that Python has, too.
class InOrder : public torch::data::samplers::Sampler<> {
 public:
  explicit InOrder(size_t count) : count_(count) {
    while (std::gcd(step_, count_) != 1) ++step_;
  }
  void reset(torch::optional<size_t> new_size = torch::nullopt) override {
    count_ = new_size.value_or(count_), next_ = 0;
  }
  torch::optional<std::vector<size_t>> next(size_t batch_size) override {
    std::vector<size_t> rows;
    for (; rows.size() < batch_size && next_ < count_; ++next_) {
      rows.push_back((next_ * step_ + 11) % count_);
    }
    return rows.empty() ? torch::nullopt : torch::make_optional(rows);
  }
  void save(torch::serialize::OutputArchive&) const override {}
  void load(torch::serialize::InputArchive&) override {}

 private:
  size_t count_, next_ = 0, step_ = 37;
};

inline auto train_loader(Pairs pairs, int64_t batch_size, bool drop_last = false) {
  return torch::data::make_data_loader(
      pairs.map(torch::data::transforms::Stack<>()), InOrder(*pairs.size()),
      torch::data::DataLoaderOptions(static_cast<size_t>(batch_size)).drop_last(drop_last));
}
inline auto eval_loader(Pairs pairs) {
  return torch::data::make_data_loader<torch::data::samplers::SequentialSampler>(
      pairs.map(torch::data::transforms::Stack<>()), kEvalBatchSize);
}
inline auto get_dataloaders(int64_t batch_size, bool drop_last = false) {
  return std::pair(train_loader(Pairs(0, kTrainRows), batch_size, drop_last),
                   eval_loader(Pairs(1000, kEvalRows)));
}

struct Output {
  torch::Tensor loss, logits;
  void visit_tensors(const auto& visit) { visit(loss), visit(logits); }
};

/// Rank 0 prints the loss of each training step.
struct ClassifierImpl : tessera::nn::Hookable {
  ClassifierImpl() {
    register_module("words", words), register_module("hidden", hidden);
    register_module("out", out);
    const torch::NoGradGuard no_grad;
    double phase = 0;
    for (auto& parameter : parameters()) {
      const auto at = torch::arange(parameter.numel(), torch::kFloat64) * 0.7 + phase++;
      parameter.copy_((torch::sin(at) * 0.02).reshape(parameter.sizes()));
    }
  }
  Output forward(const torch::Tensor& ids, const torch::Tensor& labels) {
    const auto there = ids.ne(0).to(torch::kFloat32);
    const auto mean = (words(ids) * there.unsqueeze(-1)).sum(1) / there.sum(1, /*keepdim=*/true);
    const auto logits = kGain * out(torch::tanh(kGain * hidden(kGain * mean)));
    const auto loss = at::cross_entropy_loss(logits, labels);
    const char* rank = std::getenv("RANK");
    if (is_training() && torch::GradMode::is_enabled() && (!rank || rank[0] == '0')) {
      fmt::print("loss {:.8f}\n", loss.item<double>());
    }
    return {loss, logits};
  }
  torch::nn::Embedding words{kWords, kDim};
  torch::nn::Linear hidden{kDim, kHidden}, out{kHidden, 2};
};
using Classifier = tessera::nn::Hooked<ClassifierImpl>;

/// Accuracy and F1 of what was added since the last call.
class Metric {
 public:
  void add_batch(const torch::Tensor& predictions, const torch::Tensor& references) {
    count_ += predictions.numel();
    hits_ += predictions.eq(references).sum().item<int64_t>();
    true_ += (predictions * references).sum().item<int64_t>();
    ones_ += (predictions + references).sum().item<int64_t>();
  }
  std::map<std::string, double> compute() {
    const auto share = [](int64_t of, int64_t all) {
      return all == 0 ? 0 : static_cast<double>(of) / static_cast<double>(all);
    };
    std::map<std::string, double> found{{"accuracy", share(hits_, count_)},
                                        {"f1", share(2 * true_, ones_)}};
    *this = Metric();
    return found;
  }

 private:
  int64_t count_ = 0, hits_ = 0, true_ = 0, ones_ = 0;
};

inline std::string text(const std::map<std::string, double>& metric) {
  return fmt::format("accuracy: {:.8f} f1: {:.8f}", metric.at("accuracy"), metric.at("f1"));
}

/// transformers' linear schedule with warm-up.
inline tessera::lr_scheduler::LambdaLR get_linear_schedule_with_warmup(int64_t num_warmup_steps,
                                                                       int64_t num_training_steps) {
  return {{[=](int64_t step) {
    const auto share = [](int64_t of, int64_t all) {
      return static_cast<double>(of) / static_cast<double>(std::max<int64_t>(1, all));
    };
    if (step < num_warmup_steps) return share(step, num_warmup_steps);
    return std::max(0.0, share(num_training_steps - step, num_training_steps - num_warmup_steps));
  }}};
}

/// The end of each example's epoch.
inline std::map<std::string, double> evaluate(const tessera::Accelerator& accelerator, auto& model,
                                              auto& loader) {
  Metric metric;
  model->eval();
  for (auto& batch : loader) {
    const torch::NoGradGuard no_grad;
    const auto outputs = model(batch.data, batch.target);
    const auto [predictions, references] =
        accelerator.gather_for_metrics(std::pair(outputs.logits.argmax(-1), batch.target));
    metric.add_batch(predictions, references);
  }
  return metric.compute();
}

}  // namespace pairs
