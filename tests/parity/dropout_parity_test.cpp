// GPT-2 with dropout on any number of ranks, in any placement, with and without checkpointing: the
// loss and the gradient norm of one rank with the whole batch.
#include <gtest/gtest.h>

#include "tessera/config/run_config.h"
#include "tessera/data/batch.h"
#include "tessera/memory/activation_checkpointing.h"
#include "tessera/models/language_model.h"
#include "tessera/nn/dropout.h"
#include "tessera/parallel/data/data_parallel.h"
#include "tests/support/ranks.h"

namespace tessera::parity {
namespace {

using memory::CheckpointMode;
using parallel::Placement;

constexpr int64_t kRows = 7, kTokens = 16;  // uneven on 2 and 3 ranks

struct Outcome {
  double loss = 0, grad_norm = 0;
};

std::shared_ptr<models::LanguageModel> small_gpt2(double dropout) {
  config::ModelSection section;
  section.preset = "gpt2", section.dropout = dropout, section.vocab_size = 64;
  section.num_layers = 2, section.dim = 32, section.num_heads = 4;
  auto model = models::make_language_model(config::resolve_model_shape(section));
  models::initialise(*model, /*seed=*/1, /*std=*/0.1);
  return model;
}

/// Forward and backward of this rank's rows in two micro-batches, the first of one row.
Outcome step(const mesh::DeviceMesh& mesh, double dropout, Placement placement,
             CheckpointMode mode) {
  const auto model = small_gpt2(dropout);
  memory::checkpoint_blocks(model->blocks(), {.mode = mode});
  const auto units = parallel::make_units(
      *model, {.kind = parallel::UnitRuleKind::given, .modules = model->blocks()});
  parallel::DataParallelOptions options{.gradient_divide_factor = 1};
  options.unit.placement = placement;
  auto data_parallel = parallel::parallelise(*model, units, parallel::DataAxes::of(mesh), options);
  const auto ids = torch::arange(kRows * kTokens).mul(29).remainder(64).view({kRows, kTokens});
  const auto rows = data::rows_of(mesh.rank(), mesh.size(), kRows);
  const auto loss_sum = torch::zeros({}, torch::kFloat64);
  for (const bool last : {false, true}) {
    data_parallel.set_is_last_backward(last);
    data_parallel.set_requires_gradient_sync(last);
    const int64_t begin = last ? rows.begin + 1 : rows.begin;
    const nn::RandomScope scope(nn::RandomContext{.seed = 9, .step = 4, .first_row = begin});
    const auto part = ids.slice(0, begin, last ? rows.end : begin + 1);
    const auto loss = model->loss(part, part, 1.0 / (kRows * kTokens));
    loss.backward();
    data_parallel.finish_backward();
    loss_sum.add_(loss.detach());
  }
  mesh.world().all_reduce(loss_sum).wait();
  return {loss_sum.item<double>(), data_parallel.gradient_norm().norm};
}

class DropoutParityTest : public RankTest {};

TEST_P(DropoutParityTest, EqualsOneRankInEveryPlacement) {
  const auto expected = step(mesh::DeviceMesh(), 0.2, Placement::replicate, CheckpointMode::none);
  const auto none = step(mesh::DeviceMesh(), 0, Placement::replicate, CheckpointMode::none);
  EXPECT_GT(std::abs(expected.loss / none.loss - 1), 1e-3);
  on_mesh({.shape = {.dp_shard = GetParam()}}, [&](const mesh::DeviceMesh& mesh) {
    for (const auto placement :
         {Placement::shard_optimizer, Placement::shard_gradients, Placement::full_shard}) {
      for (const auto mode :
           {CheckpointMode::none, CheckpointMode::full, CheckpointMode::selective}) {
        const auto found = step(mesh, 0.2, placement, mode);
        EXPECT_NEAR(found.loss / expected.loss, 1, 1e-5);
        EXPECT_NEAR(found.grad_norm / expected.grad_norm, 1, 1e-4);
      }
    }
  });
}
INSTANTIATE_TEST_SUITE_P(Ranks, DropoutParityTest, ::testing::Values(1, 2, 3));

}  // namespace
}  // namespace tessera::parity
