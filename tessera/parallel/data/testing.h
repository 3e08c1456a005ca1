// A model for tests of what users do to a sharded one.
#pragma once

#include <vector>

#include "tessera/nn/layers.h"
#include "tessera/parallel/data/data_parallel.h"

namespace tessera::parallel {

inline const std::vector<Placement> kPlacements{Placement::replicate, Placement::shard_optimizer,
                                                Placement::shard_gradients, Placement::full_shard};
inline const std::vector<UnitRule> kRules{{.kind = UnitRuleKind::by_size, .min_num_params = 10},
                                          {.kind = UnitRuleKind::whole_model}};

struct ResidualImpl : nn::Hookable {
  ResidualImpl() : in(6, 6, true), out(6, 6) {
    register_module("in", in), register_module("out", out);
    running = register_buffer("running", torch::zeros({6}));
    calls = register_buffer("calls", torch::zeros({}, torch::kInt64));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const auto y = out(in(x).tanh());
    note(y.detach());
    return x + y;
  }
  void note(const torch::Tensor& y) {
    running.mul_(0.5).add_(y.mean(0), 0.5);
    calls += 1;
  }
  nn::Linear in, out;
  torch::Tensor running, calls;
};
using Residual = nn::Hooked<ResidualImpl>;

struct Net : nn::Hookable {
  Net() : first(4, 6, true), last(6, 3) {
    register_module("first", first), register_module("block0", block0);
    register_module("block1", block1), register_module("last", last);
    torch::manual_seed(3);
    const torch::NoGradGuard no_grad;
    for (auto& parameter : parameters()) parameter.normal_(0, 0.4);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    auto y = block0(first(x).tanh());
    if (with_block1) y = block1(y);
    return last(y.tanh());
  }
  nn::Linear first;
  Residual block0, block1;
  nn::Linear last;
  bool with_block1 = true;
};

inline torch::Tensor batch(int step) {
  torch::manual_seed(50 + static_cast<uint64_t>(step));
  return torch::randn({6, 4});
}
inline torch::Tensor part_of_batch(int step, int rank, int ranks) {
  return batch(step).slice(0, 6 * rank / ranks, 6 * (rank + 1) / ranks);
}
inline torch::Tensor loss_of(Net& net, const torch::Tensor& x) {
  return net.forward(x).square().sum();
}

inline std::vector<torch::Tensor> values_of(Net& net) {
  std::vector<torch::Tensor> values;
  for (const auto& parameter : net.parameters()) values.push_back(parameter.detach().clone());
  return values;
}

}  // namespace tessera::parallel
