// Gradients of several batches are added up before each update. After Accelerate's examples/by_feature/gradient_accumulation.py: what it is about is marked.
#include "pairs.h"

using namespace pairs;

int main() {
  constexpr double kLearningRate = 2e-5;
  constexpr int kEpochs = 3, kSeed = 42, kBatchSize = 16;
  tessera::Accelerator accelerator({.gradient_accumulation_steps = 2});  // +
  tessera::set_seed(kSeed);
  auto [train_rows, eval_rows] = get_dataloaders(kBatchSize);
  Classifier net;
  torch::optim::AdamW adamw(net->parameters(), torch::optim::AdamWOptions(kLearningRate));
  auto warm_up = tessera::lr_scheduler::LRScheduler(
      adamw, get_linear_schedule_with_warmup(
                 /*num_warmup_steps=*/100, (kTrainRows + kBatchSize - 1) / kBatchSize * kEpochs));
  auto [model, optimizer, train_dataloader, eval_dataloader, lr_scheduler] =
      accelerator.prepare(net, adamw, train_rows, eval_rows, warm_up);
  for (int epoch = 0; epoch < kEpochs; ++epoch) {
    model->train();
    for (auto& batch : train_dataloader) {
      const auto scope = accelerator.accumulate(model);
      const auto output = model(batch.data, batch.target);
      accelerator.backward(output.loss);
      optimizer.step();
      lr_scheduler.step();
      optimizer.zero_grad();
    }
    accelerator.print("epoch {}: {}", epoch, text(evaluate(accelerator, model, eval_dataloader)));
  }
  accelerator.end_training();
}
