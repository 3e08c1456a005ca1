// Saves its state every so many steps or after each epoch, and goes on from there. After Accelerate's examples/by_feature/checkpointing.py: what it is about is marked.
//
//     checkpointing --checkpointing_steps 5 --output_dir out
//     checkpointing --resume_from_checkpoint out/step_20
#include <filesystem>

#include "pairs.h"

using namespace pairs;
namespace fs = std::filesystem;

namespace {

/// Where training goes on, from a folder's name: epoch_<i> or step_<i>.
struct Start {
  int64_t epoch = 0;
  std::optional<int64_t> resume_step;
};

Start start_of(const fs::path& checkpoint, int64_t num_batches) {
  const auto training_difference = checkpoint.stem().string();
  const int64_t number = std::stoll(training_difference.substr(training_difference.find('_') + 1));
  if (training_difference.starts_with("epoch_")) return {.epoch = number + 1};
  return {.epoch = number / num_batches, .resume_step = number % num_batches};
}

}  // namespace

int main(int argc, char** argv) {
  constexpr double kLearningRate = 2e-5;
  constexpr int kEpochs = 3, kSeed = 42, kBatchSize = 16;
  const Options options(argc, argv);
  const bool stateful = options.has("--use_stateful_dataloader");
  const auto checkpointing_steps = options["--checkpointing_steps"];
  const fs::path output_dir = options["--output_dir"].value_or(".");
  const auto resume_from_checkpoint = options["--resume_from_checkpoint"];
  tessera::Accelerator accelerator({.use_stateful_dataloader = stateful});
  const bool each_epoch = checkpointing_steps == "epoch";  // +
  const int64_t every = checkpointing_steps && !each_epoch ? std::stoll(*checkpointing_steps) : 0;
  tessera::set_seed(kSeed);
  auto [train_rows, eval_rows] = get_dataloaders(kBatchSize);
  Classifier net;
  torch::optim::AdamW adamw(net->parameters(), torch::optim::AdamWOptions(kLearningRate));
  auto warm_up = tessera::lr_scheduler::LRScheduler(
      adamw, get_linear_schedule_with_warmup(
                 /*num_warmup_steps=*/100, (kTrainRows + kBatchSize - 1) / kBatchSize * kEpochs));
  auto [model, optimizer, train_dataloader, eval_dataloader, lr_scheduler] =
      accelerator.prepare(net, adamw, train_rows, eval_rows, warm_up);
  int64_t overall_step = 0;  // +
  Start start;               // +
  if (resume_from_checkpoint) {
    accelerator.print("Resumed from checkpoint: {}", *resume_from_checkpoint);
    accelerator.load_state(*resume_from_checkpoint);  // +
    start = start_of(*resume_from_checkpoint, train_dataloader.size());
  }
  for (auto epoch = start.epoch; epoch < kEpochs; ++epoch) {
    model->train();
    auto active_dataloader = train_dataloader;
    if (epoch == start.epoch && start.resume_step) {
      if (!stateful) {
        active_dataloader =
            accelerator.skip_first_batches(train_dataloader, *start.resume_step);  // +
      }
      overall_step += *start.resume_step;
    }
    for (auto& batch : active_dataloader) {
      const auto outputs = model(batch.data, batch.target);
      accelerator.backward(outputs.loss);
      optimizer.step();
      lr_scheduler.step();
      optimizer.zero_grad();
      ++overall_step;
      if (every > 0 && overall_step % every == 0) {
        accelerator.save_state(output_dir / fmt::format("step_{}", overall_step));  // +
      }
    }
    accelerator.print("epoch {}: {}", epoch, text(evaluate(accelerator, model, eval_dataloader)));
    if (each_epoch) accelerator.save_state(output_dir / fmt::format("epoch_{}", epoch));  // +
  }
  accelerator.end_training();
}
