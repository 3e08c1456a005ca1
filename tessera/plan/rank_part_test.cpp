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
  for (const auto& unit : plan_units(run, part.shape, part, true)) {
    elements += unit.buffers.front().elements;
  }
  return elements;
}

/// Elements of a rank's buffers, frozen and trained.
std::pair<int64_t, int64_t> frozen_and_trained(const RankPlan& rank) {
  std::pair<int64_t, int64_t> result;
  for (const auto& unit : rank.units) {
    for (const auto& buffer : unit.buffers) {
      (buffer.trained ? result.second : result.first) += buffer.elements;
    }
  }
  return result;
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
  const double block = predict::block_activations(run, parts[0], 0).kept, tokens = 256, d = 4 * 256;
  EXPECT_DOUBLE_EQ(predict::in_flight(run, parts[0]).bytes, tokens * (4 * 2 * block + (1 + 2) * d));
  EXPECT_DOUBLE_EQ(predict::in_flight(run, parts[2]).bytes, tokens * (2 * 2 * block + (1 + 4) * d));
  EXPECT_DOUBLE_EQ(predict::in_flight(run, parts[3]).bytes,
                   tokens * (2 * block + 2 * d + 4 + 2 * d));

  // Where the backward is split, what is deferred is as much as was kept, but for statistics ..
  run.parallel.pipeline_schedule = "ZB-H1";
  const auto split = parts_of(run, shape);
  const auto of_block = predict::block_activations(run, split[0], 0);
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
      return predict::block_activations(run, parts_of(run, shape).front(), 0).kept;
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
    auto changed = run;
    if (!checkpointed) changed.memory.checkpointing = memory::CheckpointMode::none;
    return predict::block_activations(changed, parts_of(run, shape).front(), 0).kept / 4;
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

/// In a block's attention q_proj and v_proj have an adapter, in layer 1 of rank 2; the
/// last norm and the head are trained whole.
TEST(RankPartTest, AnAdapterFreezesTheRest) {
  const auto shape = models::model_preset("tiny");
  config::RunConfig run;
  run.adapter.type = models::AdapterType::lora;
  run.adapter.rank_pattern = {{"layers.1.*", 2}};
  run.adapter.modules_to_save = {"model.norm", "lm_head"};
  const auto whole = make_plan(run, shape).ranks.front();
  const int64_t trained = models::num_trained(run.adapter, shape);
  EXPECT_EQ(trained, (3 * 8 + 2) * (2 * 256 + 256 + 128) + 256 + 2048 * 256);
  const std::pair<int64_t, int64_t> expected{models::num_parameters(shape) - 256 - 2048 * 256,
                                             trained};
  EXPECT_EQ(frozen_and_trained(whole), expected);
  EXPECT_EQ(whole.units.front().buffers.size(), 1U);  // the embedding is frozen
  EXPECT_FALSE(whole.units.front().buffers.front().trained);
  EXPECT_EQ(whole.units.back().buffers.size(), 1U);  // the head is trained
  EXPECT_TRUE(whole.part.trains_head);
  TrainedOfBlock first{.input_graph = false,
                       .feed_forward = false,
                       .expert_rows = false,
                       .last_product = false,
                       .adapter_numbers = 16};
  EXPECT_EQ(whole.part.blocks[0], first);
  EXPECT_EQ(whole.part.blocks[1].adapter_numbers, 4);
  EXPECT_TRUE(whole.part.blocks[1].input_graph);

  run.parallel.units = parallel::Units::model;
  EXPECT_EQ(frozen_and_trained(make_plan(run, shape).ranks.front()), expected);

  // Each of two ranks has half of B's rows, half of the head, and all of A, of which it sums gradients.
  run.parallel.units = parallel::Units::block;
  run.parallel.num_ranks = run.parallel.tp = 2;
  const auto part = make_plan(run, shape).ranks.front();
  EXPECT_EQ(frozen_and_trained(part).second, (3 * 8 + 2) * (2 * 256 + 128 + 64) + 256 + 1024 * 256);
  EXPECT_EQ(part.units[1].buffers.back().summed, 2 * 8 * 256);
  EXPECT_EQ(part.units.back().buffers.back().summed, 256);

  // A stage has the adapters of its blocks.
  run.parallel.tp = 1, run.parallel.pp = 2;
  const auto stages = make_plan(run, shape).ranks;
  EXPECT_EQ(frozen_and_trained(stages[0]).second + frozen_and_trained(stages[1]).second, trained);
}

}  // namespace
}  // namespace tessera::plan
