// An optimizer that needs no schedule, and that trains and evaluates with other weights. After Accelerate's examples/by_feature/schedule_free.py: what it is about is marked.
#include "adamw_schedule_free.h"
#include "pairs.h"

using namespace pairs;

int main() {
  constexpr double kLearningRate = 2e-5;
  constexpr int kEpochs = 3, kSeed = 42, kBatchSize = 16;
  tessera::Accelerator accelerator;
  tessera::set_seed(kSeed);
  auto [train_rows, eval_rows] = get_dataloaders(kBatchSize, /*drop_last=*/true);
  Classifier net;
  AdamWScheduleFree schedule_free(  // +
      net->parameters(), ScheduleFreeOptions(kLearningRate, /*warmup=*/100));
  auto [model, optimizer, train_dataloader, eval_dataloader] =
      accelerator.prepare(net, schedule_free, train_rows, eval_rows);
  for (int epoch = 0; epoch < kEpochs; ++epoch) {
    model->train();
    optimizer.train();  // +
    for (auto& batch : train_dataloader) {
      const auto outputs = model(batch.data, batch.target);
      accelerator.backward(outputs.loss);
      optimizer.step();
      optimizer.zero_grad();
    }
    optimizer.eval();  // +
    accelerator.print("epoch {}: {}", epoch, text(evaluate(accelerator, model, eval_dataloader)));
  }
  accelerator.end_training();
}
