#include "tessera/plan/rank_part.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/plan/run_plan.h"
#include "tessera/predict/activations.h"
#include "tessera/schedule/check.h"
#include "tessera/schedule/generate.h"

namespace tessera::plan {
namespace {

using ::testing::DoubleEq;
using ::testing::ElementsAre;
using ::testing::Pointwise;

config::RunConfig run_of(int64_t ranks, int64_t tp, int64_t pp) {
  config::RunConfig run;
  run.parallel.num_ranks = ranks;
  run.parallel.tp = tp;
  run.parallel.pp = pp;
  run.train.global_batch = 16;
  return run;
}

std::vector<RankPart> parts_of(const config::RunConfig& run, const models::ModelShape& shape) {
  std::vector<RankPart> parts;
  const auto plan = make_plan(run, shape);
  for (const auto& rank : plan.ranks) parts.push_back(rank.part);
  return parts;
}

int64_t elements_of(const config::RunConfig& run, const RankPart& part) {
  int64_t elements = 0;
  for (const auto& unit : plan_units(run, part, true)) elements += unit.buffers.front().elements;
  return elements;
}

models::ModelShape gpt2_of_tiny_width() {
  auto shape = models::model_preset("gpt2");
  shape.vocab_size = 2048, shape.dim = 256, shape.num_layers = 4;
  shape.num_heads = shape.num_kv_heads = 8, shape.head_dim = 32, shape.ffn_dim = 1024;
  return shape;
}

TEST(RankPart, HasItsPartOfEachMatrix) {
  auto shape = models::model_preset("tiny");  // 8 heads, 4 of keys
  shape.vocab_size = 255, shape.ffn_dim = 690;
  const auto run = run_of(8, 8, 1);
  const auto part = parts_of(run, shape).front();
  EXPECT_EQ(part.shape.num_heads, 1);
  EXPECT_EQ(part.shape.num_kv_heads, 1);
  EXPECT_EQ(part.key_copies, 2);
  EXPECT_EQ(part.shape.vocab_size, 32);
  EXPECT_EQ(part.shape.ffn_dim, 87);
  EXPECT_EQ(part.position_ranks, 8);
  EXPECT_EQ(part.micro_batch, 16);
  // q, o: 256 x 32 each, as k, v; three of 256 x 87; two norms.
  const int64_t block = 256 * (4 * 32 + 3 * 87) + 2 * 256;
  EXPECT_EQ(elements_of(run, part), 2 * 32 * 256 + 4 * block + 256);
  auto odd = run_of(3, 3, 1);
  odd.parallel.sequence_parallel = false;
  EXPECT_THROW(parts_of(odd, shape), UserError);
}

// Bytes of parameters in runs on two ranks.
TEST(RankPart, HoldsWhatRunsHold) {
  auto llama = models::model_preset("tiny");
  llama.vocab_size = 256;
  const auto run = run_of(2, 2, 1);
  EXPECT_EQ(4 * elements_of(run, parts_of(run, llama).front()), 6071296);
  const auto gpt2 = gpt2_of_tiny_width();
  EXPECT_EQ(4 * elements_of(run, parts_of(run, gpt2).front()), 8429568);
}

TEST(RankPart, StagesShareTheModel) {
  auto shape = models::model_preset("tiny");
  shape.num_layers = 8;
  auto run = run_of(4, 1, 4);
  run.parallel.stage_layers = {1, 2, 3, 2};
  const auto parts = parts_of(run, shape);
  ASSERT_EQ(parts.size(), 4);
  int64_t elements = 0;
  for (const auto& part : parts) elements += elements_of(run, part);
  EXPECT_EQ(elements, models::num_parameters(shape));
  EXPECT_TRUE(parts[0].stages[0].embeds && parts[0].stages[0].sends_output);
  EXPECT_FALSE(parts[0].stages[0].predicts || parts[0].stages[0].sends_gradient);
  EXPECT_EQ(parts[2].stages[0].layers.begin, 3);
  EXPECT_EQ(parts[2].shape.num_layers, 3);
  EXPECT_TRUE(parts[3].stages[0].predicts && parts[3].stages[0].sends_gradient);
  EXPECT_EQ(parts[3].micro_batch, 1);

  // Tied: the first rank and the last both have the table, unless they are the same.
  shape.tie_embeddings = true;
  elements = 0;
  for (const auto& part : parts_of(run, shape)) elements += elements_of(run, part);
  EXPECT_EQ(elements, models::num_parameters(shape) + shape.vocab_size * shape.dim);
  run.parallel.stage_layers.clear();
  run.parallel.pipeline_schedule = "ZBVZeroBubble";
  const auto v = parts_of(run, shape);
  EXPECT_TRUE(v[0].has_tied_table());
  EXPECT_FALSE(v[0].shares_table);
  EXPECT_FALSE(v[3].stages[0].sends_output);  // there it turns
  elements = 0;
  for (const auto& part : v) elements += elements_of(run, part);
  EXPECT_EQ(elements, models::num_parameters(shape));
}

TEST(RankPart, CountsWhatIsInFlight) {
  auto shape = models::model_preset("tiny");
  shape.num_layers = 8;
  auto run = run_of(4, 1, 4);
  for (const auto& facts : schedule::families()) {
    run.parallel.pipeline_schedule = facts.name;
    const auto plan = make_plan(run, shape).pipeline;
    std::vector<double> found;
    for (const auto& part : parts_of(run, shape)) {
      found.push_back(predict::in_flight(run, part).micro_batches);
    }
    EXPECT_THAT(found, Pointwise(DoubleEq(), schedule::peak_activations(plan.schedule)))
        << facts.name;
  }
  // 1F1B: p - rank micro-batches of two layers each; the last rank's head beside them.
  run.parallel.pipeline_schedule = "1F1B";
  run.parallel.stage_layers = {2, 2, 2, 2};
  const auto parts = parts_of(run, shape);
  // Each rank also holds the output of its last forward, and two messages on their way from each
  // neighbour.
  const double block = predict::block_activations(run, parts[0], false).kept, tokens = 256,
               d = 4 * 256;
  EXPECT_DOUBLE_EQ(predict::in_flight(run, parts[0]).bytes, tokens * (4 * 2 * block + (1 + 2) * d));
  EXPECT_DOUBLE_EQ(predict::in_flight(run, parts[2]).bytes, tokens * (2 * 2 * block + (1 + 4) * d));
  EXPECT_DOUBLE_EQ(predict::in_flight(run, parts[3]).bytes,
                   tokens * (2 * block + 2 * d + 4 + 2 * d));

  // Where the backward is split, what is deferred is as much as was kept, but for statistics ..
  run.parallel.pipeline_schedule = "ZB-H1";
  const auto split = parts_of(run, shape);
  const auto of_block = predict::block_activations(run, split[0], false);
  EXPECT_DOUBLE_EQ(of_block.deferred + 4 * (8 + 2), of_block.kept);
  // .. and with checkpoints it is more than they are.
  const double plain = predict::in_flight(run, split[3]).bytes;
  run.memory.checkpointing = memory::CheckpointMode::full;
  const double checkpointed = predict::in_flight(run, split[3]).bytes;
  EXPECT_LT(checkpointed, plain);
  EXPECT_GT(checkpointed, tokens * 2 * of_block.deferred);
}

// Table 2 of Korthikanti et al., without masks of dropout: in 16 bits D (8 + 24 / t) bytes, of 10 +
// 24 / t, and with positions divided 32 / t of 34 / t. Beside them float32 of norms and attention.
TEST(Activations, OfGpt2AreThosePublished) {
  const auto shape = gpt2_of_tiny_width();
  for (const int64_t tp : {1, 2, 4, 8}) {
    auto run = run_of(tp, tp, 1);
    run.precision.compute = FloatType::bf16;
    const auto t = static_cast<double>(tp);
    const double heads = 4 * 8 / t;
    const auto kept = [&] {
      return predict::block_activations(run, parts_of(run, shape).front(), false).kept;
    };
    EXPECT_DOUBLE_EQ(kept(), 256 * 32 / t + heads + 16 / t);
    run.parallel.sequence_parallel = false;
    EXPECT_DOUBLE_EQ(kept(), 256 * (8 + 24 / t) + heads + 16);
  }
}

TEST(Activations, OfADividedLlamaBlock) {
  const auto shape = models::model_preset("tiny");
  const double d = 256, k = 128, f = 688, h = 8;
  auto run = run_of(4, 4, 1);
  const auto kept = [&](bool checkpointed) {
    return predict::block_activations(run, parts_of(run, shape).front(), checkpointed).kept / 4;
  };
  const double inside = (2 * d + 2 * k + 3 * f + h) / 4;
  EXPECT_DOUBLE_EQ(kept(false), 4 * d / 4 + inside + 2 / 4.0);
  run.memory.checkpointing = memory::CheckpointMode::selective;
  EXPECT_DOUBLE_EQ(kept(true), 2 * d / 4 + (2 * d + 2 * k + 2 * f + h) / 4);
  run.memory.checkpointing = memory::CheckpointMode::full;
  EXPECT_DOUBLE_EQ(kept(true), d / 4);
  run.parallel.sequence_parallel = false;
  EXPECT_DOUBLE_EQ(kept(true), d);
  EXPECT_DOUBLE_EQ(kept(false), 4 * d + inside + 2);
}

}  // namespace
}  // namespace tessera::plan
