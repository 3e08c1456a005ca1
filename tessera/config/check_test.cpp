#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/config/run_config.h"

namespace tessera::config {
namespace {

RunConfig good() {
  RunConfig config;
  config.data.train = {"corpus/"};
  return config;
}

std::string error_of(const RunConfig& config, const Origins& origins = {}) {
  try {
    check(config, origins);
  } catch (const UserError& error) {
    return error.what();
  }
  return "no error";
}

TEST(CheckTest, DefaultsWithDataAreGood) {
  EXPECT_EQ(error_of(good()), "no error");
  EXPECT_EQ(error_of(RunConfig{}),
            "data.train: expected at least one file or folder, got none; set data.train, or "
            "--data.train=PATH");
}

TEST(CheckTest, OnlyGpt2Drops) {
  auto config = good();
  config.model.dropout = 0.1;
  EXPECT_EQ(error_of(config, {{"model.dropout", "job.yaml:3"}}),
            "job.yaml:3: model.dropout: a llama drops nothing, got 0.1; remove it, or take a gpt2");
  config.model.preset = "gpt2";
  EXPECT_EQ(error_of(config), "no error");
  EXPECT_EQ(resolve_model_shape(config.model).dropout, 0.1);
}

TEST(CheckTest, ErrorsSayWhereTheValueWasWritten) {
  auto config = good();
  config.parallel.num_ranks = 3;
  const std::string line =
      "train.global_batch: 8 sequences cannot be divided over 3 ranks; set a multiple of 3";
  EXPECT_EQ(error_of(config), line);
  EXPECT_EQ(error_of(config, {{"train.global_batch", "default"}}), line);
  EXPECT_EQ(error_of(config, {{"train.global_batch", "job.yaml:7"}}), "job.yaml:7: " + line);
  EXPECT_EQ(error_of(config, {{"train.global_batch", "command line"}}), "--" + line);
}

TEST(CheckTest, TensorParallelism) {
  auto config = good();
  config.model.preset = "micro";
  config.data.seq_len = 64;
  config.parallel.num_ranks = 8;
  config.parallel.tp = 2;
  EXPECT_EQ(error_of(config), "no error");
  const auto sizes = std::get<MeshSizes>(mesh_sizes(config.parallel, 8));
  EXPECT_EQ(sizes.dp_replicate, 4);
  config.train.global_batch = 4;  // shared by the four data ranks
  EXPECT_EQ(error_of(config), "no error");
  config.parallel.tp = -1;
  EXPECT_EQ(std::get<MeshSizes>(mesh_sizes(config.parallel, 8)).tp, 8);
  config.parallel.tp = 3;
  EXPECT_EQ(error_of(config), "parallel.tp: the mesh has 6 ranks but the run has 8; set 2 or -1");
  config.parallel.placement = "full_shard";
  config.parallel.dp_shard = 3, config.parallel.dp_replicate = 1;
  EXPECT_EQ(error_of(config),
            "parallel.tp: dp_replicate 1 x dp_shard 3 x tp 3 make 9 ranks but the run has 8; "
            "start 9, or change a size");
  config.parallel.dp_shard = -1, config.parallel.tp = 8;
  EXPECT_EQ(error_of(config),
            "parallel.tp: 4 heads (2 of keys) cannot be divided over 8 ranks; set one of 1, 2, 4");
  config.parallel.tp = 4, config.data.seq_len = 63;
  EXPECT_EQ(error_of(config),
            "data.seq_len: expected a multiple of parallel.tp 4, got 63; set 60, or "
            "parallel.sequence_parallel to false");
  config.parallel.sequence_parallel = false;
  EXPECT_EQ(error_of(config), "no error");
  config.parallel.tp = 1, config.train.global_batch = 8;
  EXPECT_EQ(error_of(config),
            "parallel.sequence_parallel: has no effect here: it needs parallel.tp above 1; remove "
            "one of them");
}

TEST(CheckTest, RanksShareTheBatch) {
  auto config = good();
  config.train.global_batch = 12;
  config.train.micro_batch = 3;
  for (const int64_t ranks : {-1, 1, 2, 4}) {
    config.parallel.num_ranks = ranks;
    EXPECT_EQ(error_of(config), "no error") << ranks;
  }
  config.parallel.num_ranks = 3;
  EXPECT_EQ(error_of(config),
            "train.micro_batch: expected 0 or a divisor of 4, each rank's share of "
            "train.global_batch 12, got 3");
  config.train.micro_batch = 5;
  config.parallel.num_ranks = 4;
  EXPECT_EQ(error_of(config),
            "train.micro_batch: expected 0 or a divisor of 3, each rank's share of "
            "train.global_batch 12, got 5");
}

TEST(CheckTest, TheMeshCoversTheRanks) {
  auto config = good();
  config.parallel.num_ranks = 4;
  config.parallel.dp_replicate = 4;
  EXPECT_EQ(error_of(config), "no error");
  config.parallel.dp_replicate = 2;
  EXPECT_EQ(error_of(config),
            "parallel.dp_replicate: the mesh has 2 ranks but the run has 4; set 4 or -1");
  config.parallel.dp_shard = 2;
  EXPECT_EQ(error_of(config),
            "parallel.dp_shard: 2 ranks cannot share a model that is replicated; remove it, or set "
            "parallel.placement to full_shard");
  config.parallel.placement = "full_shard";
  EXPECT_EQ(error_of(config), "no error");
  config.parallel.dp_shard = 3;
  EXPECT_EQ(error_of(config),
            "parallel.dp_shard: the mesh has 6 ranks but the run has 4; set 2 or -1");
  config.parallel.dp_replicate = -1;
  EXPECT_EQ(error_of(config),
            "parallel.dp_shard: the mesh has 3 ranks but the run has 4; set 4 or -1");
  config.parallel.dp_shard = 5;
  EXPECT_EQ(error_of(config),
            "parallel.dp_shard: the mesh has 5 ranks but the run has 4; set 4 or -1");
}

TEST(CheckTest, ReshardingDividesTheRanksThatShare) {
  auto config = good();
  config.parallel.num_ranks = 4;
  config.parallel.placement = "full_shard";
  for (const auto* right : {"true", "false", "2", "4"}) {
    config.parallel.reshard_after_forward = right;
    EXPECT_EQ(error_of(config), "no error") << right;
  }
  for (const auto* wrong : {"3", "0", "-2", "yes", "2x", ""}) {
    config.parallel.reshard_after_forward = wrong;
    EXPECT_EQ(error_of(config),
              std::string("parallel.reshard_after_forward: expected true, false or a divisor of "
                          "the 4 ranks of dp_shard, got ") +
                  wrong);
  }
}

TEST(CheckTest, Precisions) {
  auto config = good();
  config.precision.parameters = "bf16";
  EXPECT_THAT(error_of(config), ::testing::StartsWith("precision.parameters: bf16 parameters"));
  config.precision.compute = "bf16";
  EXPECT_EQ(error_of(config), "no error");
  config.precision.reduce = "fp16";
  EXPECT_EQ(error_of(config),
            "precision.reduce: expected fp32 or precision.compute bf16, got fp16");
  config.precision = {.compute = "bf16", .autocast = true, .reduce = "bf16"};
  EXPECT_THAT(error_of(config), ::testing::StartsWith("precision.reduce: under autocast"));
}

TEST(CheckTest, PhasesFitIntoTheRun) {
  auto config = good();
  config.schedule.warmup_steps = 100;
  EXPECT_EQ(error_of(config), "no error");
  config.schedule.warmup_steps = 101;
  EXPECT_EQ(error_of(config), "schedule.warmup_steps: expected at most train.steps 100, got 101");
  config.schedule = {.type = "wsd", .warmup_steps = 10, .decay_steps = 90};
  EXPECT_EQ(error_of(config), "no error");
  config.schedule.decay_steps = 91;
  EXPECT_EQ(
      error_of(config),
      "schedule.decay_steps: expected at most 90 (train.steps 100 less 10 of warm-up), got 91");
}

TEST(CheckTest, Models) {
  auto config = good();
  config.model.init = "pretrained";
  EXPECT_EQ(error_of(config, {{"model.init", "job.yaml:2"}}),
            "job.yaml:2: model.init: 'pretrained' needs weights to read; set model.path to a "
            "folder with config.json and "
            "*.safetensors");
  config.model.path = "weights/";
  EXPECT_EQ(error_of(config), "no error");
  config.model.num_layers = 2;
  EXPECT_EQ(error_of(config),
            "model.num_layers: the shape of pretrained weights cannot be changed; remove it, or "
            "set model.init to random");
  config = good();
  config.model.num_heads = 3;
  EXPECT_EQ(error_of(config, {{"model.num_heads", "command line"}}),
            "--model.num_heads: 3 heads do not divide a width of 256; set a model.dim that is a "
            "multiple of model.num_heads");
  config = good();
  config.model.preset = "gpt2";
  config.data.seq_len = 1025;
  EXPECT_EQ(error_of(config),
            "data.seq_len: expected at most 1024, the positions of model.preset gpt2, got 1025");
}

TEST(CheckTest, SettingsThatCannotTakeEffect) {
  auto config = good();
  config.optimizer.momentum = 0.9;
  EXPECT_EQ(error_of(config, {{"optimizer.momentum", "job.yaml:9"}}),
            "job.yaml:9: optimizer.momentum: has no effect here: it needs optimizer.type sgd; "
            "remove one of them");
  config.optimizer.type = "sgd";
  EXPECT_EQ(error_of(config), "no error");
  config.optimizer.beta2 = 0.99;
  EXPECT_EQ(
      error_of(config),
      "optimizer.beta2: has no effect here: it needs optimizer.type adamw; remove one of them");
  config = good();
  config.schedule.decay_steps = 5;
  EXPECT_EQ(
      error_of(config),
      "schedule.decay_steps: has no effect here: it needs schedule.type wsd; remove one of them");
  config = good();
  config.model.path = "weights/";
  config.model.preset = "small";
  EXPECT_EQ(error_of(config),
            "model.preset: has no effect here: it needs no model.path; remove one of them");
}

}  // namespace
}  // namespace tessera::config
