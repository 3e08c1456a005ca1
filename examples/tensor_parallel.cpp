// A module of your own, its matrices divided over ranks as Megatron-LM divides them (Shoeybi et
// al., 2019): a feed-forward net that learns to add modulo 16.
//
//     build/release/bin/tensor_parallel                                         # one rank
//     build/release/bin/tessera launch -n 2 build/release/bin/tensor_parallel   # two, the same losses
//     build/release/bin/tessera launch -n 4 build/release/bin/tensor_parallel 2 # tp 2, FSDP over 2
#include "tessera/parallel/tensor/tensor_parallel.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <torch/optim/adamw.h>

#include <cstdlib>

#include "tessera/comm/run_program.h"
#include "tessera/data/batch.h"
#include "tessera/launch/rank_environment.h"
#include "tessera/nn/initialise.h"
#include "tessera/nn/layers.h"
#include "tessera/parallel/data/data_parallel.h"

using namespace tessera;

struct NetImpl : nn::Hookable {  // pairs of numbers [B, 2] -> logits of their sum [B, 16]
  NetImpl() {
    register_module("embed", embed), register_module("head", head);
    register_module("up", up), register_module("down", down);
    for (auto& item : named_parameters()) {  // the same weights, however they are divided
      const double std = item.key() == "embed.weight" ? 1 : 0.1;
      nn::fill_portable(item.value().detach(), item.key(), /*seed=*/0, std);
    }
  }
  torch::Tensor forward(const torch::Tensor& pairs) {
    const auto x = embed(pairs).sum(1);
    return head(x + down(at::gelu(up(x))));
  }
  nn::Embedding embed{16, 64};
  nn::Linear up{64, 256, true}, down{256, 64, true}, head{64, 16};
};

/// What becomes of each module; a model that ships such a plan divides itself.
const nn::TensorPlan kPlan{{.pattern = "embed", .style = nn::TensorStyle::per_position},
                           {.pattern = "up", .style = nn::TensorStyle::column_wise, .enters = true},
                           {.pattern = "down", .style = nn::TensorStyle::row_wise},
                           {.pattern = "head", .style = nn::TensorStyle::per_position}};

int program(int argc, char** argv) {
  const auto ranks = launch::rank_environment().value_or(launch::RankEnvironment{});
  const int tp = argc > 1 ? std::atoi(argv[1]) : ranks.world_size;
  const mesh::DeviceMesh mesh({.dp_shard = ranks.world_size / tp, .tp = tp},
                              {ranks.rank, ranks.world_size, ranks.master_addr, ranks.master_port,
                               ranks.listen_fd, ranks.agent_store});
  nn::Hooked<NetImpl> net;
  const auto parts =
      parallel::tensor_parallel(*net, kPlan, mesh, {.sequence_parallel = false});  // not text
  parallel::DataParallelOptions options;
  options.replication = [&](const std::string& name) {
    const auto found = parts.find(name);
    return found == parts.end() ? parallel::Replication{} : found->second.replication;
  };
  auto model = fully_shard(*net, mesh, options);
  torch::optim::AdamW optimizer(model.parameters(), torch::optim::AdamWOptions(3e-3));
  torch::manual_seed(0);  // the same pairs on every rank
  const auto data = mesh.axis("dp_shard");
  double last = 0;
  for (int step = 1; step <= 100; ++step) {
    const auto rows = data::rows_of(data.rank(), data.size(), 64);
    const auto pairs = at::randint(16, {64, 2}, torch::kInt64).slice(0, rows.begin, rows.end);
    const auto loss = at::cross_entropy_loss(net(pairs), pairs.sum(1) % 16);
    loss.backward();
    model.finish_backward();
    optimizer.step();
    model.finish_step();
    auto mean = loss.detach() / data.size();
    data.all_reduce(mean).wait();
    last = mean.item<double>();
    if (step % 20 == 0 && mesh.rank() == 0) fmt::print("step {}: loss {:.4f}\n", step, last);
  }
  return last < 0.1 ? 0 : 1;  // ln 16 = 2.77 at first
}

int main(int argc, char** argv) {
  return tessera::run_program([&] { return program(argc, argv); });
}
