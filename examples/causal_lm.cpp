// A causal language model of your own in seventy lines of code, trained on the bytes of a file by any
// number of ranks (FSDP), which then writes on.
//
//     build/release/bin/causal_lm README.md
//     build/release/bin/tessera launch -n 2 build/release/bin/causal_lm README.md   # the same losses
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <torch/optim/adamw.h>

#include <algorithm>
#include <cstddef>

#include "tessera/base/file.h"
#include "tessera/comm/run_program.h"
#include "tessera/data/batch.h"
#include "tessera/kernels/rotary.h"
#include "tessera/launch/rank_environment.h"
#include "tessera/nn/attention.h"
#include "tessera/nn/initialise.h"
#include "tessera/nn/layers.h"
#include "tessera/parallel/data/data_parallel.h"

using namespace tessera;
using torch::Tensor;

constexpr int64_t kDim = 128, kHeads = 4, kHeadDim = kDim / kHeads, kSeqLen = 64, kRows = 16;

struct BlockImpl : nn::Hookable {  // [B, T, D] -> [B, T, D]
  Tensor forward(const Tensor& x, const Tensor& cos, const Tensor& sin) {
    const auto heads = qkv(norm(x)).view({x.size(0), x.size(1), 3, kHeads, kHeadDim}).unbind(2);
    const auto attended = x + out(attention(heads[0], heads[1], heads[2], nn::Positions{cos, sin}));
    return attended + down(at::silu(up(mlp_norm(attended))));
  }
  nn::RMSNorm norm = register_module("norm", nn::RMSNorm(kDim, 1e-5));
  nn::RMSNorm mlp_norm = register_module("mlp_norm", nn::RMSNorm(kDim, 1e-5));
  nn::Linear qkv = register_module("qkv", nn::Linear(kDim, 3 * kDim));
  nn::Linear out = register_module("out", nn::Linear(kDim, kDim));
  nn::Linear up = register_module("up", nn::Linear(kDim, 4 * kDim));
  nn::Linear down = register_module("down", nn::Linear(4 * kDim, kDim));
  nn::Attention attention{kernels::AttentionOptions{.causal = true}};
};
using Block = nn::Hooked<BlockImpl>;

struct ModelImpl : nn::Hookable {  // ids [B, T] -> logits [B, T, 256]; with targets: scale x loss
  Tensor forward(const Tensor& ids, const Tensor& targets = {}, double scale = 1) {
    const auto [cos, sin] = kernels::rotary_tables(ids.size(1), kHeadDim);
    return head(norm(second(first(embed(ids), cos, sin), cos, sin)), targets, scale);
  }
  nn::Embedding embed = register_module("embed", nn::Embedding(256, kDim));
  Block first = register_module("first", Block()), second = register_module("second", Block());
  nn::RMSNorm norm = register_module("norm", nn::RMSNorm(kDim, 1e-5));
  nn::LanguageModelHead head = register_module("head", nn::LanguageModelHead(kDim, 256));
};

int program(int argc, char** argv) {
  const auto ranks = launch::rank_environment().value_or(launch::RankEnvironment{});
  const mesh::DeviceMesh mesh({.dp_shard = ranks.world_size},
                              {ranks.rank, ranks.world_size, ranks.master_addr, ranks.master_port,
                               ranks.listen_fd, ranks.agent_store});
  const MappedFile file(argc > 1 ? argv[1] : "README.md");
  auto text = torch::empty({std::ssize(file.bytes())}, torch::kInt64);
  std::ranges::transform(file.bytes(), text.data_ptr<int64_t>(), std::to_integer<int64_t>);
  nn::Hooked<ModelImpl> net;
  for (auto& item : net->named_parameters()) {  // from names: the same on every rank
    auto values = item.value().detach();
    if (values.dim() == 1) values.fill_(1);
    if (values.dim() > 1) nn::fill_portable(values, item.key(), /*seed=*/0, /*std=*/0.05);
  }
  auto model =
      fully_shard(*net, mesh, {}, {.kind = parallel::UnitRuleKind::by_class, .classes = {"Block"}});
  torch::optim::AdamW optimizer(model.parameters(), torch::optim::AdamWOptions(3e-3));
  torch::manual_seed(0);
  double last = 0;
  for (int step = 1; step <= 100; ++step) {
    const auto rows = data::rows_of(mesh.rank(), mesh.size(), kRows);
    const auto starts = at::randint(text.numel() - kSeqLen, {kRows, 1}, torch::kInt64);
    const auto bytes =
        text.index({starts.slice(0, rows.begin, rows.end) + at::arange(kSeqLen + 1)});
    const double scale = double(mesh.size()) / (kRows * kSeqLen);  // gradients are averaged
    const auto loss = net(bytes.slice(1, 0, kSeqLen), bytes.slice(1, 1), scale);
    loss.backward();
    model.finish_backward();
    optimizer.step();
    model.finish_step();
    auto mean = loss.detach() / mesh.size();
    mesh.axis("dp_shard").all_reduce(mean).wait();
    last = mean.item<double>();
    if (step % 20 == 0 && mesh.rank() == 0) fmt::print("step {}: loss {:.3f}\n", step, last);
  }
  const torch::NoGradGuard no_grad;
  auto written = text.slice(0, 0, 16).unsqueeze(0);
  for (int i = 0; i < 48; ++i) {
    const auto logits = net(written.slice(1, -kSeqLen)).select(1, -1);
    written = at::cat({written, logits.argmax(-1, /*keepdim=*/true)}, 1);
  }
  std::string continued;
  for (int64_t i = 0; i < written.size(1); ++i) continued += char(written[0][i].item<int64_t>());
  if (mesh.rank() == 0) fmt::print("{}\n", continued);
  return last < 3.2 ? 0 : 1;  // ln 256 = 5.55 at first
}

int main(int argc, char** argv) {
  return tessera::run_program([&] { return program(argc, argv); });
}
