// Parameters are split over the processes, and each epoch says how much memory it took. After Accelerate's examples/by_feature/fsdp_with_peak_mem_tracking.py: what it is about is marked.
//
//     tessera launch --config_file examples/accelerate/configs/fsdp1.yaml fsdp_with_peak_mem_tracking
#include <atomic>
#include <thread>

#include "pairs.h"
#include "tessera/report/clock.h"

using namespace pairs;

namespace {

int64_t b2mb(int64_t bytes) { return bytes >> 20; }

/// The memory of this process (on a GPU at::accelerator::getDeviceStats() tells of the device's)
/// from its making to stop().
class TorchTracemalloc {  // +
 public:
  TorchTracemalloc() : begin(memory()), peak_(begin), monitor_([this] { watch(); }) {}
  ~TorchTracemalloc() { stop(); }
  TorchTracemalloc(const TorchTracemalloc&) = delete;
  TorchTracemalloc& operator=(const TorchTracemalloc&) = delete;

  void stop() {
    if (!monitor_.joinable()) return;
    monitoring_ = false;
    monitor_.join();
    used = b2mb(memory() - begin);
    peaked = b2mb(peak_ - begin);
  }

  void print(const tessera::Accelerator& accelerator, const char* what) const {
    accelerator.print("Memory before entering the {} : {}", what, b2mb(begin));
    accelerator.print("Memory consumed at the end of the {} (end-begin): {}", what, used);
    accelerator.print("Peak Memory consumed during the {} (max-begin): {}", what, peaked);
    accelerator.print("Total Peak Memory consumed during the {} (max): {}", what,
                      peaked + b2mb(begin));
  }

  const int64_t begin;
  int64_t used = 0, peaked = 0;  // MiB

 private:
  static int64_t memory() { return tessera::report::process_memory().current_bytes; }
  void watch() {
    while (monitoring_) peak_ = std::max(memory(), peak_);
  }

  int64_t peak_;
  std::atomic<bool> monitoring_ = true;
  std::thread monitor_;
};

/// Biases and norms do not decay.
std::vector<torch::optim::OptimizerParamGroup> grouped_parameters(const Classifier& net,
                                                                  double learning_rate) {
  std::vector<torch::Tensor> decayed, others;
  for (const auto& item : net->named_parameters()) {
    const auto has = [&](const char* part) { return item.key().find(part) != std::string::npos; };
    (has("bias") || has("LayerNorm.weight") ? others : decayed).push_back(item.value());
  }
  const auto group = [&](const std::vector<torch::Tensor>& parameters, double decay) {
    return torch::optim::OptimizerParamGroup(
        parameters, std::make_unique<torch::optim::AdamWOptions>(
                        torch::optim::AdamWOptions(learning_rate).weight_decay(decay)));
  };
  return {group(decayed, 0.003), group(others, 0.0)};
}

}  // namespace

int main() {
  constexpr double kLearningRate = 2e-5;
  constexpr int kEpochs = 3, kSeed = 42, kBatchSize = 16;
  tessera::Accelerator accelerator;
  accelerator.print("{}", accelerator.distributed_type());
  auto [train_rows, eval_rows] = get_dataloaders(kBatchSize);
  tessera::set_seed(kSeed);
  Classifier net;
  torch::optim::AdamW adamw(grouped_parameters(net, kLearningRate));
  auto warm_up = tessera::lr_scheduler::LRScheduler(
      adamw, get_linear_schedule_with_warmup(
                 /*num_warmup_steps=*/10, (kTrainRows + kBatchSize - 1) / kBatchSize * kEpochs));
  auto [model, optimizer, train_dataloader, eval_dataloader, lr_scheduler] =
      accelerator.prepare(net, adamw, train_rows, eval_rows, warm_up);
  for (int epoch = 0; epoch < kEpochs; ++epoch) {
    TorchTracemalloc training;  // +
    model->train();
    for (auto& batch : train_dataloader) {
      const auto outputs = model(batch.data, batch.target);
      accelerator.backward(outputs.loss);
      optimizer.step();
      lr_scheduler.step();
      optimizer.zero_grad();
    }
    training.stop();
    training.print(accelerator, "train");  // +
    TorchTracemalloc evaluation;           // +
    accelerator.print("epoch {}: {}", epoch, text(evaluate(accelerator, model, eval_dataloader)));
    evaluation.stop();
    evaluation.print(accelerator, "eval");  // +
  }
  accelerator.end_training();
}
