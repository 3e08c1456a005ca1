// A module of your own on an installed Tessera: two layers, shared by all ranks, learn the sine.
//
//     cmake -S . -B build -DCMAKE_PREFIX_PATH=PREFIX && cmake --build build
//     build/out_of_tree                                  # one rank
//     PREFIX/bin/tessera launch -n 2 build/out_of_tree   # two share the module
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include <numbers>

#include "tessera/comm/run_program.h"
#include "tessera/launch/rank_environment.h"
#include "tessera/parallel/data/data_parallel.h"
#include "tessera/version.h"

using namespace tessera;

struct CurveImpl : nn::Hookable {  // [B, 1] -> [B, 1]
  CurveImpl() { register_module("inner", inner), register_module("outer", outer); }
  torch::Tensor forward(const torch::Tensor& x) { return outer(at::tanh(inner(x))); }
  torch::nn::Linear inner{1, 33}, outer{33, 1};  // 100 parameters
};

int program() {
  const auto ranks = launch::rank_environment().value_or(launch::RankEnvironment{});
  const mesh::DeviceMesh mesh({.dp_shard = ranks.world_size},
                              {ranks.rank, ranks.world_size, ranks.master_addr, ranks.master_port,
                               ranks.listen_fd, ranks.agent_store});
  torch::manual_seed(0);  // the same weights and points on every rank
  nn::Hooked<CurveImpl> curve;
  auto model = fully_shard(*curve, mesh);
  torch::optim::AdamW optimizer(model.parameters(), torch::optim::AdamWOptions(1e-2));
  double last = 0;
  for (int step = 1; step <= 200; ++step) {
    const auto points = (at::rand({64, 1}) * 2 - 1) * std::numbers::pi;
    const auto x = points.tensor_split(mesh.size())[mesh.rank()];  // this rank's share
    const auto loss = at::mse_loss(curve(x), at::sin(x));
    loss.backward();
    model.finish_backward();  // the mean gradient of all ranks
    optimizer.step();         // on this rank's slices
    model.finish_step();
    last = loss.item<double>();
  }
  if (mesh.rank() == 0)
    fmt::print("Tessera {}, {} ranks: loss {:.5f}\n", TESSERA_VERSION, mesh.size(), last);
  return last < 0.01 ? 0 : 1;  // 0.5 at first
}

int main() { return tessera::run_program(program); }  // errors as a line and an exit code
