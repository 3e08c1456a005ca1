// A module of your own, cut into the stages of a pipeline: a residual net that learns to add
// modulo 16, its micro-batches in any schedule (docs/schedules.md).
//
//     build/release/bin/pipeline                                       # one rank, one stage
//     build/release/bin/tessera launch -n 2 build/release/bin/pipeline # two stages, the same losses
#include "tessera/parallel/pipeline/pipeline.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <torch/optim/adamw.h>

#include "tessera/comm/run_program.h"
#include "tessera/launch/rank_environment.h"
#include "tessera/nn/initialise.h"
#include "tessera/nn/layers.h"
#include "tessera/parallel/pipeline/stages.h"
#include "tessera/schedule/generate.h"

using namespace tessera;

constexpr int kBlocks = 4, kMicroBatches = 8, kRows = 8;

struct BlockImpl : nn::Hookable {  // [B, D] -> [B, D]
  BlockImpl() { register_module("up", up), register_module("down", down); }
  torch::Tensor forward(const torch::Tensor& x) { return x + down(at::gelu(up(x))); }
  nn::Linear up{64, 128, true}, down{128, 64, true};
};
using Block = nn::Hooked<BlockImpl>;

struct NetImpl : nn::Hookable {  // pairs of numbers [B, 2] -> logits of their sum [B, 16]
  NetImpl() {
    register_module("embed", embed), register_module("head", head);
    for (int i = 0; i < kBlocks; ++i) {
      blocks.push_back(register_module(fmt::format("block{}", i), Block()));
    }
    for (auto& item : named_parameters()) {  // the same weights, whoever has them
      const double std = item.key() == "embed.weight" ? 1 : 0.1;
      nn::fill_portable(item.value().detach(), item.key(), /*seed=*/0, std);
    }
  }
  nn::Embedding embed{16, 64};
  nn::Linear head{64, 16};
  std::vector<Block> blocks;
};

int program() {
  const auto ranks = launch::rank_environment().value_or(launch::RankEnvironment{});
  const mesh::DeviceMesh mesh({.pp = ranks.world_size},
                              {ranks.rank, ranks.world_size, ranks.master_addr, ranks.master_port,
                               ranks.listen_fd, ranks.agent_store});
  const auto schedule = schedule::make_schedule({.family = schedule::Family::one_f_one_b,
                                                 .num_ranks = ranks.world_size,
                                                 .num_micro_batches = kMicroBatches});
  const int stages = schedule.num_stages;
  const auto first_block = [&](int stage) { return kBlocks * stage / stages; };
  nn::Hooked<NetImpl> net;
  parallel::StageModules modules(static_cast<size_t>(stages));
  modules.front().push_back("embed");
  modules.back().push_back("head");
  for (int stage = 0; stage < stages; ++stage) {
    for (int i = first_block(stage); i < first_block(stage + 1); ++i) {
      modules[static_cast<size_t>(stage)].push_back(fmt::format("block{}", i));
    }
  }
  parallel::keep_stages(*net, modules, schedule.rank_of_stage, mesh);
  parallel::Pipeline pipeline(schedule, mesh);
  torch::optim::AdamW optimizer(net->parameters(), torch::optim::AdamWOptions(3e-3));
  torch::manual_seed(0);  // the same pairs on every rank
  double last = 0;
  for (int step = 1; step <= 100; ++step) {
    const auto pairs = at::randint(16, {kMicroBatches, kRows, 2}, torch::kInt64);
    const auto forward = [&](int stage, int micro_batch, torch::Tensor x) {
      const auto rows = pairs[micro_batch];
      if (stage == 0) x = net->embed(rows).sum(1);
      for (int i = first_block(stage); i < first_block(stage + 1); ++i) {
        x = net->blocks[static_cast<size_t>(i)](x);
      }
      if (stage + 1 < stages) return x;
      return at::cross_entropy_loss(net->head(x), rows.sum(1) % 16) / kMicroBatches;
    };
    optimizer.zero_grad();
    last = 0;
    for (const auto& loss : pipeline.train(forward)) last += loss.item<double>();
    optimizer.step();
    if (step % 20 == 0 && pipeline.has_last_stage())
      fmt::print("step {}: loss {:.4f}\n", step, last);
  }
  return pipeline.has_last_stage() && last >= 0.1 ? 1 : 0;  // ln 16 = 2.77 at first
}

int main() { return tessera::run_program(program); }  // errors as a line and an exit code
