// Any process may end the training of all. After Accelerate's examples/by_feature/early_stopping.py: what it is about is marked.
#include <limits>

#include "pairs.h"

using namespace pairs;

namespace {

/// True once the loss has not fallen for `patience` steps.
class EarlyStopping {
 public:
  bool check(double loss) {
    if (loss <= lowest_) {
      lowest_ = loss, since_ = 0;
      return false;
    }
    return ++since_ >= kPatience;
  }

 private:
  static constexpr int kPatience = 5;
  double lowest_ = std::numeric_limits<double>::infinity();
  int since_ = 0;
};

}  // namespace

int main() {
  constexpr double kLearningRate = 2e-5;
  constexpr int kEpochs = 3, kSeed = 42, kBatchSize = 16;
  tessera::Accelerator accelerator;
  EarlyStopping callback;
  tessera::set_seed(kSeed);
  auto [train_rows, eval_rows] = get_dataloaders(kBatchSize, /*drop_last=*/true);
  Classifier net;
  torch::optim::AdamW adamw(net->parameters(), torch::optim::AdamWOptions(kLearningRate));
  auto warm_up = tessera::lr_scheduler::LRScheduler(
      adamw, get_linear_schedule_with_warmup(
                 /*num_warmup_steps=*/100, kTrainRows / kBatchSize * kEpochs));
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
      if (callback.check(outputs.loss.item<double>())) accelerator.set_trigger();  // +
      if (accelerator.check_trigger()) break;                                      // +
    }
    accelerator.print("epoch {}: {}", epoch, text(evaluate(accelerator, model, eval_dataloader)));
  }
  accelerator.end_training();
}
