// Dropout that draws by position (nn/dropout.h) in checkpointed modules.
#include "tessera/nn/dropout.h"

#include <gtest/gtest.h>

#include <optional>

#include "tessera/memory/activation_checkpointing.h"
#include "tessera/nn/layers.h"

namespace tessera::memory {
namespace {

struct DroppingImpl : nn::Hookable {
  DroppingImpl() {
    register_module("in", in), register_module("out", out), register_module("drop", drop);
    torch::manual_seed(1);
    for (auto& parameter : parameters()) parameter.detach().normal_();
  }
  torch::Tensor forward(const torch::Tensor& x) { return x + drop(out(drop(in(x).tanh()))); }
  nn::Linear in{6, 9}, out{9, 6};
  nn::Dropout drop{"drop", 0.4};
};
using Dropping = nn::Hooked<DroppingImpl>;

/// Gradients of two micro-batches whose forwards come before both backwards.
std::vector<torch::Tensor> gradients(CheckpointMode mode) {
  Dropping module;
  checkpoint(*module, {.mode = mode});
  const auto x = torch::linspace(-1, 1, 8 * 6).view({8, 6}).requires_grad_();
  std::vector<torch::Tensor> outputs;
  for (const int64_t row : {0, 5}) {
    const nn::RandomScope scope(nn::RandomContext{.seed = 3, .step = 1, .first_row = row});
    outputs.push_back(module(x.slice(0, row, row == 0 ? 5 : 8)));
  }
  for (const auto& output : outputs) output.square().sum().backward();
  std::vector<torch::Tensor> result{x.grad()};
  for (const auto& parameter : module->parameters()) result.push_back(parameter.grad());
  return result;
}

TEST(CheckpointedDropout, DrawsTheNumbersOfItsForwardAgain) {
  const auto plain = gradients(CheckpointMode::none);
  for (const auto mode : {CheckpointMode::full, CheckpointMode::selective}) {
    const auto checkpointed = gradients(mode);
    ASSERT_EQ(plain.size(), checkpointed.size());
    for (size_t i = 0; i < plain.size(); ++i) {
      EXPECT_TRUE(plain[i].equal(checkpointed[i])) << "gradient " << i;
    }
  }
}

}  // namespace
}  // namespace tessera::memory
