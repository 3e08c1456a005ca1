// Sends its settings and figures to all trackers. After Accelerate's examples/by_feature/tracking.py: what it is about is marked.
//
//     tracking --with_tracking --project_dir logs
#include <filesystem>

#include "pairs.h"

using namespace pairs;

int main(int argc, char** argv) {
  constexpr double kLearningRate = 2e-5;
  constexpr int kEpochs = 3, kSeed = 42, kBatchSize = 16;
  const Options options(argc, argv);
  const bool with_tracking = options.has("--with_tracking");
  const std::filesystem::path project_dir = options["--project_dir"].value_or("logs");
  tessera::Accelerator accelerator({.log_with = {"all"}});  // +
  tessera::set_seed(kSeed);
  auto [train_rows, eval_rows] = get_dataloaders(kBatchSize);
  Classifier net;
  torch::optim::AdamW adamw(net->parameters(), torch::optim::AdamWOptions(kLearningRate));
  auto warm_up = tessera::lr_scheduler::LRScheduler(
      adamw, get_linear_schedule_with_warmup(
                 /*num_warmup_steps=*/100, (kTrainRows + kBatchSize - 1) / kBatchSize * kEpochs));
  auto [model, optimizer, train_dataloader, eval_dataloader, lr_scheduler] =
      accelerator.prepare(net, adamw, train_rows, eval_rows, warm_up);
  if (with_tracking) {
    accelerator.init_trackers(project_dir / "tracking", {{"lr", kLearningRate},  // +
                                                         {"num_epochs", double{kEpochs}},
                                                         {"seed", double{kSeed}},
                                                         {"batch_size", double{kBatchSize}}});
  }
  for (int epoch = 0; epoch < kEpochs; ++epoch) {
    model->train();
    double total_loss = 0;  // +
    for (auto& batch : train_dataloader) {
      const auto outputs = model(batch.data, batch.target);
      total_loss += outputs.loss.item<double>();  // +
      accelerator.backward(outputs.loss);
      optimizer.step();
      lr_scheduler.step();
      optimizer.zero_grad();
    }
    const auto eval_metric = evaluate(accelerator, model, eval_dataloader);
    accelerator.print("epoch {}: {}", epoch, text(eval_metric));
    if (with_tracking) {
      accelerator.log({{"accuracy", eval_metric.at("accuracy")},  // +
                       {"f1", eval_metric.at("f1")},
                       {"train_loss", total_loss / static_cast<double>(train_dataloader.size())},
                       {"epoch", epoch}},
                      /*step=*/epoch);
    }
  }
  accelerator.end_training();  // +
}
