// What an Accelerator does under DDP, FSDP 1 and 2 and DeepSpeed's ZeRO 1 to 3, which sharded.py
// does with Accelerate, PyTorch's FSDP and DeepSpeed, too.
//
//     tessera launch --use_fsdp .. -n N accelerate_sharded FILE
#include <optional>

#include "tests/accelerate/problem.h"

namespace {

using namespace problem;

constexpr double kClip = 0.05;

struct TrainOptions {
  int64_t rows = 16, steps = 1;
  bool clip = false;
};

template <typename Optimizer, typename OptimizerOptions>
void train(std::string name, const OptimizerOptions& optimizer_options,
           const TrainOptions& options = {}) {
  Accelerator accelerator({.gradient_accumulation_steps = options.steps});
  Net net;
  Optimizer own(net->parameters(), optimizer_options);
  auto [model, optimizer, loader] = accelerator.prepare(net, own, make_loader(options.rows, 2));
  Numbers losses, norms;
  for (int epoch = 0; epoch < 2; ++epoch) {
    for (auto& [data, target] : loader) {
      const auto scope = accelerator.accumulate(model);
      const auto loss = loss_of(model(data), target);
      accelerator.backward(loss);
      if (options.clip) norms.push_back(accelerator.clip_grad_norm_(net->parameters(), kClip));
      optimizer.step();
      optimizer.zero_grad();
      losses.push_back(loss.template item<double>());
    }
  }
  if (accelerator.mixed_precision() != "no") name = accelerator.mixed_precision() + "." + name;
  say_all(accelerator, name + ".losses", losses);
  if (options.clip) say(&accelerator, name + ".norms", norms);
  std::vector<torch::Tensor> flat;
  for (const auto& item : accelerator.get_state_dict(model)) {
    flat.push_back(item.value().to(torch::kFloat32).flatten());
  }
  say(&accelerator, name + ".weights", torch::cat(flat));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    fmt::print(stderr, "usage: accelerate_sharded FILE\n");
    return 2;
  }
  namespace optim = torch::optim;
  train<optim::AdamW>("adamw.clipped", optim::AdamWOptions(0.02).weight_decay(0.1), {.clip = true});
  train<optim::SGD>("sgd", optim::SGDOptions(0.1).momentum(0.9));
  train<optim::AdamW>("adamw.accumulated", optim::AdamWOptions(0.02), {.rows = 20, .steps = 2});
  return write_lines(Accelerator(), argv[1]);
}
