// The loop of plain_loop.cpp with an Accelerator: what differs is marked.
//
//     tessera launch --config_file examples/accelerate/configs/fsdp.yaml accelerated_loop
#include <ATen/ops/cross_entropy_loss.h>
#include <torch/data/dataloader.h>
#include <torch/data/datasets/map.h>
#include <torch/data/samplers/random.h>
#include <torch/data/transforms/stack.h>
#include <torch/optim/adamw.h>
#include <torch/optim/schedulers/step_lr.h>

#include "spiral.h"
#include "tessera/comm/run_program.h"
#include "tessera/train/accelerator.h"

int program() {
  tessera::Accelerator accelerator({.split_batches = true});  // +
  torch::manual_seed(0);
  Net net;
  torch::optim::AdamW adamw(net->parameters(), torch::optim::AdamWOptions(3e-3));
  torch::optim::StepLR step_lr(adamw, /*step_size=*/150, /*gamma=*/0.5);
  auto batches = torch::data::make_data_loader<torch::data::samplers::RandomSampler>(
      Spiral(360).map(torch::data::transforms::Stack<>()), /*batch_size=*/24);
  auto [loader, model, optimizer, scheduler] =
      accelerator.prepare(batches, net, adamw, step_lr);  // +

  double last = 0;
  for (int epoch = 1; epoch <= 15; ++epoch) {
    for (auto& batch : loader) {  // without the *
      optimizer.zero_grad();
      auto loss = at::cross_entropy_loss(model(batch.data), batch.target);
      accelerator.backward(loss);  // +
      optimizer.step();
      scheduler.step();
      last = accelerator.reduce(loss, "mean").item<double>();  // +
    }
    accelerator.print("epoch {}: loss {:.6f}", epoch, last);
  }
  return last < 0.3 ? 0 : 1;
}

int main() { return tessera::run_program(program); }  // errors as a line and an exit code
