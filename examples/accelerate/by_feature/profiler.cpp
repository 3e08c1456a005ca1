// What each epoch spends its time on. After Accelerate's examples/by_feature/profiler.py: what it is about is marked.
//
//     profiler --record_shapes --output_trace_dir traces
#include "pairs.h"

using namespace pairs;

int main(int argc, char** argv) {
  constexpr double kLearningRate = 2e-5;
  constexpr int kEpochs = 3, kSeed = 42, kBatchSize = 16;
  const Options options(argc, argv);
  const tessera::ProfileOptions profile_options{
      // +
      .record_shapes = options.has("--record_shapes"),
      .profile_memory = options.has("--profile_memory"),
      .with_flops = options.has("--with_flops"),
      .output_trace_dir = options["--output_trace_dir"].value_or("")};
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
    const auto prof = accelerator.profile(profile_options);  // +
    for (auto& batch : train_dataloader) {
      const auto scope = accelerator.accumulate(model);
      const auto output = model(batch.data, batch.target);
      accelerator.backward(output.loss);
      optimizer.step();
      lr_scheduler.step();
      optimizer.zero_grad();
    }
    prof->stop();                                            // +
    accelerator.print("{}", prof->table(/*row_limit=*/-1));  // +
    accelerator.print("epoch {}: {}", epoch, text(evaluate(accelerator, model, eval_dataloader)));
  }
  accelerator.end_training();
}
