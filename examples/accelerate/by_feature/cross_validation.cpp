// Each fold of the data is held out once, and what the folds' models say of the test rows is averaged. After Accelerate's examples/by_feature/cross_validation.py: what it is about is marked.
#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>

#include "pairs.h"

using namespace pairs;

namespace {

struct Fold {
  std::vector<int64_t> train, valid;
};

/// Every n-th pair of each class is held out.
std::vector<Fold> stratified_folds(int64_t num_folds) {
  std::vector<Fold> folds(static_cast<size_t>(num_folds));
  std::map<int64_t, int64_t> seen;  // by label
  for (int64_t i = 0; i < kTrainRows; ++i) {
    const auto held_out = static_cast<size_t>(seen[Pairs::label(i)]++ % num_folds);
    for (size_t fold = 0; fold < folds.size(); ++fold) {
      (fold == held_out ? folds[fold].valid : folds[fold].train).push_back(i);
    }
  }
  return folds;
}

auto get_fold_dataloaders(const Fold& fold, int64_t batch_size) {  // +
  return std::tuple(train_loader(Pairs(fold.train), batch_size), eval_loader(Pairs(fold.valid)),
                    eval_loader(Pairs(1000, kEvalRows)));
}

}  // namespace

int main(int argc, char** argv) {
  constexpr double kLearningRate = 2e-5;
  constexpr int kEpochs = 3, kSeed = 42, kBatchSize = 16;
  const auto num_folds = std::stoll(Options(argc, argv)["--num_folds"].value_or("3"));
  tessera::Accelerator accelerator;
  tessera::set_seed(kSeed);
  std::vector<torch::Tensor> test_predictions, test_references;  // +
  for (const auto& fold : stratified_folds(num_folds)) {         // +
    auto [train_rows, eval_rows, test_dataloader] = get_fold_dataloaders(fold, kBatchSize);
    Classifier net;
    torch::optim::AdamW adamw(net->parameters(), torch::optim::AdamWOptions(kLearningRate));
    const auto num_batches = (std::ssize(fold.train) + kBatchSize - 1) / kBatchSize;
    auto warm_up = tessera::lr_scheduler::LRScheduler(
        adamw, get_linear_schedule_with_warmup(/*num_warmup_steps=*/100, num_batches * kEpochs));
    auto [model, optimizer, train_dataloader, eval_dataloader, lr_scheduler] =
        accelerator.prepare(net, adamw, train_rows, eval_rows, warm_up);
    for (int epoch = 0; epoch < kEpochs; ++epoch) {
      model->train();
      for (auto& batch : train_dataloader) {
        const auto outputs = model(batch.data, batch.target);
        accelerator.backward(outputs.loss);
        optimizer.step();
        lr_scheduler.step();
        optimizer.zero_grad();
      }
      accelerator.print("epoch {}: {}", epoch, text(evaluate(accelerator, model, eval_dataloader)));
    }
    std::vector<torch::Tensor> fold_predictions;  // +
    for (auto& batch : *test_dataloader) {
      const torch::NoGradGuard no_grad;
      const auto outputs = model(batch.data, batch.target);
      const auto [predictions, references] =
          accelerator.gather_for_metrics(std::pair(outputs.logits, batch.target));
      fold_predictions.push_back(predictions);
      if (test_predictions.empty()) test_references.push_back(references);
    }
    test_predictions.push_back(at::cat(fold_predictions));  // +
    accelerator.free_memory();                              // +
  }
  const auto mean = at::stack(test_predictions).sum(0) / num_folds;  // +
  Metric metric;
  metric.add_batch(mean.argmax(-1), at::cat(test_references));
  accelerator.print("Average test metrics from all folds: {}", text(metric.compute()));  // +
  accelerator.end_training();
}
