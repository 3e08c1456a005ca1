// A module of your own, sharded in FSDP2's words: a small residual net that learns to add
// modulo 16.
//
//     build/release/bin/own_model                                         # one rank
//     build/release/bin/tessera launch -n 2 build/release/bin/own_model   # two share the model
//     build/release/bin/own_model FOLDER                                  # saves there, and goes on from there
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include <filesystem>
#include <string>

#include "tessera/comm/run_program.h"
#include "tessera/data/batch.h"
#include "tessera/launch/rank_environment.h"
#include "tessera/parallel/data/data_parallel.h"
#include "tessera/train/save_state.h"

using namespace tessera;

struct BlockImpl : nn::Hookable {  // [B, D] -> [B, D]; Hookable: can be a unit
  BlockImpl() { register_module("up", up), register_module("down", down); }
  torch::Tensor forward(const torch::Tensor& x) { return x + down(at::gelu(up(x))); }
  torch::nn::Linear up{64, 256}, down{256, 64};
};

struct NetImpl : nn::Hookable {  // pairs of numbers [B, 2] -> logits of their sum [B, 16]
  NetImpl() {
    register_module("embed", embed), register_module("head", head);
    register_module("first", first), register_module("second", second);
  }
  torch::Tensor forward(const torch::Tensor& x) { return head(second(first(embed(x).sum(1)))); }
  torch::nn::Embedding embed{16, 64};
  torch::nn::Linear head{64, 16};
  nn::Hooked<BlockImpl> first, second;
};

int program(const std::string& folder) {
  const auto ranks = launch::rank_environment().value_or(launch::RankEnvironment{});
  const mesh::DeviceMesh mesh({.dp_shard = ranks.world_size},
                              {ranks.rank, ranks.world_size, ranks.master_addr, ranks.master_port,
                               ranks.listen_fd, ranks.agent_store});
  torch::manual_seed(0);  // the same weights on every rank
  nn::Hooked<NetImpl> net;
  parallel::DataParallelOptions options;
  options.unit.mixed_precision = {.param_dtype = torch::kBFloat16, .reduce_dtype = torch::kFloat32};
  auto model = fully_shard(*net, mesh, options,
                           {.kind = parallel::UnitRuleKind::by_class, .classes = {"Block"}});
  torch::optim::AdamW optimizer(model.parameters(), torch::optim::AdamWOptions(3e-3));
  int64_t step = 0;
  if (std::filesystem::exists(folder)) step = load_state(folder, model, optimizer, mesh);
  double last = 0;
  while (step < 100) {
    torch::manual_seed(step++);  // the same pairs on every rank, and in a run that goes on
    const auto rows = data::rows_of(mesh.rank(), mesh.size(), 64);
    const auto pairs = at::randint(16, {64, 2}, torch::kInt64).slice(0, rows.begin, rows.end);
    const auto loss = at::cross_entropy_loss(net(pairs).to(torch::kFloat32), pairs.sum(1) % 16);
    loss.backward();
    model.finish_backward();    // the mean gradient of all ranks
    model.clip_grad_norm(1.0);  // of the whole model
    optimizer.step();           // on this rank's fp32 slices
    model.finish_step();
    last = loss.item<double>();
    if (step % 20 == 0 && mesh.rank() == 0) fmt::print("step {}: loss {:.4f}\n", step, last);
    if (step % 50 == 0 && !folder.empty()) save_state(folder, model, optimizer, mesh, step);
  }
  return last < 0.1 ? 0 : 1;  // ln 16 = 2.77 at first
}

int main(int count, char** words) {  // errors as a line and an exit code
  return tessera::run_program([&] { return program(count > 1 ? words[1] : ""); });
}
