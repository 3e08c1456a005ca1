// What gather() repeats at the end of a loader, cut by hand. After Accelerate's examples/by_feature/multi_process_metrics.py: what it is about is marked.
#include "pairs.h"

using namespace pairs;

int main() {
  constexpr double kLearningRate = 2e-5;
  constexpr int kEpochs = 3, kSeed = 42, kBatchSize = 16;
  tessera::Accelerator accelerator;
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
      const auto outputs = model(batch.data, batch.target);
      accelerator.backward(outputs.loss);
      optimizer.step();
      lr_scheduler.step();
      optimizer.zero_grad();
    }
    model->eval();
    Metric metric;
    int64_t step = 0, samples_seen = 0;
    for (auto& batch : eval_dataloader) {
      const torch::NoGradGuard no_grad;
      const auto outputs = model(batch.data, batch.target);
      auto [predictions, references] =
          accelerator.gather(std::pair(outputs.logits.argmax(-1), batch.target));
      if (accelerator.num_processes() > 1) {
        if (step++ == eval_dataloader.size() - 1) {  // +
          predictions = predictions.slice(0, 0, eval_dataloader.num_rows() - samples_seen);
          references = references.slice(0, 0, eval_dataloader.num_rows() - samples_seen);
        } else {
          samples_seen += references.size(0);
        }
      }
      metric.add_batch(predictions, references);
    }
    accelerator.print("epoch {}: {}", epoch, text(metric.compute()));
  }
  accelerator.end_training();
}
