#include "tessera/predict/communication.h"

#include <gtest/gtest.h>

namespace tessera::predict {
namespace {

constexpr int64_t kDim = 256, kTokens = 256, kLayers = 8;  // of a sequence

struct Job {
  config::RunConfig config;
  models::ModelShape shape;

  Job(int64_t ranks, int64_t tp, int64_t pp) {
    config.parallel.num_ranks = ranks;
    config.parallel.tp = tp;
    config.parallel.pp = pp;
    config.train.global_batch = 8;
    shape = models::model_preset("tiny");
    shape.num_layers = kLayers;
  }
  Communication at(size_t place) const {
    return communication(config, plan::make_plan(config, shape).ranks[place]);
  }
  double parameters() const { return static_cast<double>(models::num_parameters(shape)); }
  double table() const { return static_cast<double>(shape.vocab_size * shape.dim); }
  double head() const { return static_cast<double>((shape.vocab_size + 1) * shape.dim); }
};

void expect_traffic(const Traffic& found, const Traffic& expected) {
  EXPECT_DOUBLE_EQ(found.all_reduce, expected.all_reduce);
  EXPECT_DOUBLE_EQ(found.all_gather, expected.all_gather);
  EXPECT_DOUBLE_EQ(found.reduce_scatter, expected.reduce_scatter);
  EXPECT_DOUBLE_EQ(found.sent, expected.sent);
}

// docs/data_parallel.md: 2 P, 2 P, (1 + M) P and 3 M P elements but for the last unit, which stays, and
// the table, which its backward does not read.
TEST(Communication, OfDataRanks) {
  Job job(4, 1, 1);
  const double p = 4 * job.parameters();
  expect_traffic(job.at(0).dp(), {.all_reduce = p});
  EXPECT_EQ(job.at(0).tp().total() + job.at(0).pp().total(), 0);
  job.config.parallel.placement = parallel::Placement::shard_optimizer;
  expect_traffic(job.at(0).dp(), {.all_gather = p, .reduce_scatter = p});
  job.config.train.micro_batch = 1;  // two of each rank
  expect_traffic(job.at(0).dp(), {.all_gather = p, .reduce_scatter = p});
  job.config.parallel.placement = parallel::Placement::shard_gradients;
  expect_traffic(job.at(0).dp(), {.all_gather = p, .reduce_scatter = 2 * p});
  job.config.parallel.placement = parallel::Placement::full_shard;
  expect_traffic(job.at(0).dp(), {.all_gather = 2 * (2 * p - 4 * job.head() - 4 * job.table()),
                                  .reduce_scatter = 2 * p});
  job.config.parallel.reshard_after_forward = false;
  job.config.precision.compute = FloatType::bf16;  // gathered in 16 bits, reduced in float32
  expect_traffic(job.at(0).dp(), {.all_gather = 2 * p / 2, .reduce_scatter = 2 * p});
  job.config.parallel.dp_replicate = 2;
  expect_traffic(job.at(0).dp(),
                 {.all_reduce = p / 2, .all_gather = 2 * p / 2, .reduce_scatter = 2 * p});
  EXPECT_EQ(Job(1, 1, 1).at(0).dp().total(), 0);
}

// Sums are as counted in parallel/tensor/tensor_parallel_test.cpp: forward and backward 2 L + 1
// each, and 2 L gathers of what entered.
TEST(Communication, OfTensorRanks) {
  Job job(2, 2, 1);
  job.config.parallel.sequence_parallel = false;
  const double rows = 8, activation = rows * kTokens * kDim * 4, loss = rows * kTokens * 3 * 4;
  const double all = 2 * (2 * kLayers + 1) * activation;
  expect_traffic(job.at(0).tp(), {.all_reduce = all + loss});
  job.config.train.micro_batch = 2;  // the sum of four
  expect_traffic(job.at(0).tp(), {.all_reduce = all + loss});

  for (const auto keeps :
       {memory::CheckpointMode::selective, memory::CheckpointMode::feed_forward}) {
    job.config.memory.checkpointing = keeps;
    expect_traffic(job.at(0).tp(), {.all_reduce = all + loss});
  }
  job.config.memory.checkpointing = memory::CheckpointMode::full;
  job.config.memory.checkpoint_every = 2;  // half of the layers, and of their sums the first
  const double again = kLayers / 2.0 * activation;
  expect_traffic(job.at(0).tp(), {.all_reduce = all + again + loss});

  job.config.parallel.sequence_parallel = true;
  const double norms = (2 * kLayers + 1) * kDim * 4;
  const double gathers = all + 2 * kLayers * activation;
  expect_traffic(
      job.at(0).tp(),
      {.all_reduce = loss + norms, .all_gather = gathers, .reduce_scatter = all + again});
  job.config.memory.checkpointing = memory::CheckpointMode::selective;  // sums were kept
  expect_traffic(job.at(0).tp(),
                 {.all_reduce = loss + norms, .all_gather = gathers, .reduce_scatter = all});
  job.config.memory.checkpointing = memory::CheckpointMode::none;
  expect_traffic(job.at(0).tp(),
                 {.all_reduce = loss + norms, .all_gather = gathers, .reduce_scatter = all});
  EXPECT_EQ(job.at(0).dp().total(), 0);

  // With twice as many ranks as key heads, neighbours sum the gradients of what they share.
  Job many(8, 8, 1);
  const double keys = kLayers * 2.0 * 32 * kDim * 4;
  expect_traffic(many.at(0).tp(),
                 {.all_reduce = loss + norms + keys, .all_gather = gathers, .reduce_scatter = all});
}

TEST(Communication, OfAPipeline) {
  Job job(8, 2, 4);
  job.config.parallel.stage_layers = {2, 2, 2, 2};
  const double rows = 8, activation = rows * kTokens * kDim * 4;
  // With positions divided each of two ranks sends half, to its peer of the next stage.
  expect_traffic(job.at(0).pp(), {.sent = activation / 2});
  expect_traffic(job.at(1).pp(), {.sent = 2 * activation / 2});
  expect_traffic(job.at(3).pp(), {.sent = activation / 2});
  const double blocks = 2 * 4 * activation, norms = 2 * 2 * kDim * 4;
  expect_traffic(job.at(1).tp(),
                 {.all_reduce = norms, .all_gather = 1.5 * blocks, .reduce_scatter = blocks});
  job.config.parallel.sequence_parallel = false;
  expect_traffic(job.at(0).pp(), {.sent = activation});
  expect_traffic(job.at(0).tp(), {.all_reduce = blocks + activation});

  // Tied tables are halves: 2048 rows over two ranks.
  job.shape.tie_embeddings = true;
  const double table = 1024 * kDim * 4;
  expect_traffic(job.at(0).pp(), {.all_reduce = table, .sent = activation});
  expect_traffic(job.at(1).pp(), {.sent = 2 * activation});
  expect_traffic(job.at(3).pp(), {.all_reduce = table, .sent = activation});
}

TEST(Communication, OfAPipelineOfSlices) {
  Job job(4, 1, 2);
  job.config.parallel.placement = parallel::Placement::full_shard;
  job.config.parallel.stage_layers = {8, 0};
  const double last = 4 * job.head();
  // Four micro-batches. The head's backward is next to its forward, blocks are gathered for both, the
  // table for its forward; gradients are reduced once.
  expect_traffic(job.at(1).dp(), {.all_gather = 4 * last, .reduce_scatter = last});
  const double first = 4 * job.parameters() - last;
  expect_traffic(job.at(0).dp(),
                 {.all_gather = 4 * (2 * first - 4 * job.table()), .reduce_scatter = first});
  job.config.parallel.pipeline_schedule = "GPipe";
  expect_traffic(job.at(1).dp(), {.all_gather = 4 * 2 * last, .reduce_scatter = last});
  job.config.parallel.reshard_after_forward = false;  // whole from the first to the last
  expect_traffic(job.at(1).dp(), {.all_gather = last, .reduce_scatter = last});
  job.config.parallel.reshard_after_forward = true;
  job.config.parallel.placement = parallel::Placement::shard_gradients;
  expect_traffic(job.at(1).dp(), {.all_gather = last, .reduce_scatter = last});
}

}  // namespace
}  // namespace tessera::predict
