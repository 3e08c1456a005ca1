// The batch size is made smaller until memory suffices. After Accelerate's examples/by_feature/memory.py: what it is about is marked.
#include "pairs.h"

using namespace pairs;

int main() {
  constexpr double kLearningRate = 2e-5;
  constexpr int kEpochs = 3, kSeed = 42, kBatchSize = 16;
  tessera::Accelerator accelerator;
  tessera::find_executable_batch_size(  // +
      [&](int64_t batch_size) {
        accelerator.free_memory();  // +
        tessera::set_seed(kSeed);
        auto [train_rows, eval_rows] = get_dataloaders(batch_size);
        Classifier net;
        torch::optim::AdamW adamw(net->parameters(), torch::optim::AdamWOptions(kLearningRate));
        auto warm_up = tessera::lr_scheduler::LRScheduler(
            adamw,
            get_linear_schedule_with_warmup(
                /*num_warmup_steps=*/100, (kTrainRows + batch_size - 1) / batch_size * kEpochs));
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
          accelerator.print("epoch {}: {}", epoch,
                            text(evaluate(accelerator, model, eval_dataloader)));
        }
      },
      /*starting_batch_size=*/kBatchSize);
  accelerator.end_training();
}
