#include "tessera/predict/fit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace tessera::predict {
namespace {

using ::testing::HasSubstr;

constexpr double kGiB = 1 << 30;
const Device kGpu;

config::RunConfig llama_run(int ranks) {
  config::RunConfig run;
  run.data.seq_len = 4096;
  run.train.micro_batch = 4;
  run.train.global_batch = 4 * ranks;
  run.parallel.num_ranks = ranks;
  run.precision.compute = FloatType::bf16;
  return run;
}

RankEstimate of_llama_8b(const config::RunConfig& run, double limit, const Device& device = kGpu) {
  return estimate_rank(run, models::model_preset("llama-3-8b"), device, limit);
}

std::vector<Setting> remedy(const RankEstimate& estimate) {
  return estimate.remedy ? estimate.remedy->settings : std::vector<Setting>{};
}

TEST(Fit, CheapestChangeFirst) {
  auto run = llama_run(8);
  run.memory.checkpointing = memory::CheckpointMode::full;
  const auto replicated = of_llama_8b(run, 80e9);  // 18 P = 145 GB of states
  EXPECT_FALSE(replicated.fits());
  EXPECT_EQ(remedy(replicated), (std::vector<Setting>{{"parallel.placement", "shard_optimizer"}}));
  EXPECT_LE(replicated.remedy->device_bytes, 80e9);

  run.parallel.placement = parallel::Placement::full_shard;
  run.memory.checkpointing = memory::CheckpointMode::none;
  run.train.micro_batch = 2;
  const auto sharded = of_llama_8b(run, 60e9);
  EXPECT_FALSE(sharded.fits());
  EXPECT_EQ(remedy(sharded).front().first, "memory.checkpointing");
}

TEST(Fit, OffloadIsForDevicesAlone) {
  auto run = llama_run(1);
  run.memory.checkpointing = memory::CheckpointMode::full;
  EXPECT_EQ(remedy(of_llama_8b(run, 80 * kGiB)),
            (std::vector<Setting>{{"parallel.offload_optimizer", "true"}}));
  EXPECT_TRUE(remedy(of_llama_8b(run, 80 * kGiB, {.is_host = true})).empty());
}

TEST(Fit, SmallerMicroBatchesDivideTheBatch) {
  auto run = llama_run(8);
  run.parallel.placement = parallel::Placement::full_shard;
  run.parallel.offload_params = parallel::OffloadParams::host;
  run.memory.checkpointing = memory::CheckpointMode::full;
  run.train.micro_batch = 12;
  run.train.global_batch = 96;
  const double needed = of_llama_8b(run, 1e15).memory().device_bytes();
  const auto estimate = of_llama_8b(run, 0.6 * needed);
  EXPECT_FALSE(estimate.fits());
  ASSERT_EQ(remedy(estimate).size(), 1);
  EXPECT_EQ(remedy(estimate).front().first, "train.micro_batch");
  EXPECT_EQ(12 % std::stoi(remedy(estimate).front().second), 0);
}

TEST(Fit, SaysWhatIsLeftToDo) {
  const auto hopeless = of_llama_8b(llama_run(1), 1 * kGiB);
  EXPECT_FALSE(hopeless.remedy);
  const auto text = rank_text(hopeless, "the device");
  EXPECT_THAT(text, HasSubstr("does not fit the device (1.0 GiB)"));
  EXPECT_THAT(text, HasSubstr("no single change makes it fit; memory.checkpointing=full, "
                              "parallel.offload_optimizer=true, train.micro_batch=1, "
                              "optimizer.type=adamw8bit together"));
  EXPECT_THAT(text, HasSubstr("still too much"));
  EXPECT_EQ(rank_json(hopeless)["fits"], false);
  EXPECT_TRUE(rank_json(hopeless)["one_change"].is_null());
}

TEST(Fit, TextAndJsonAgree) {
  const auto estimate = of_llama_8b(llama_run(1), 1e15);
  EXPECT_THAT(rank_text(estimate, "the device"), HasSubstr("fits the device"));
  const auto json = rank_json(estimate);
  EXPECT_EQ(json["fits"], true);
  EXPECT_EQ(json["phases"].size(), 5);
  EXPECT_EQ(json["device_bytes"], static_cast<int64_t>(estimate.memory().device_bytes()));
}

TEST(Fit, TheLargestRankOfAPipelineDecides) {
  auto run = llama_run(8);
  run.parallel.pp = 4;
  run.parallel.tp = 2;
  run.train.global_batch = 64;
  const auto early = of_llama_8b(run, 1e15);  // four micro-batches of eight layers
  EXPECT_EQ(early.largest, 0);
  run.parallel.stage_layers = {2, 2, 2, 26};
  const auto late = of_llama_8b(run, 1e15);
  EXPECT_EQ(late.largest, 3);
  for (const auto& rank : late.pipeline) {
    EXPECT_LE(rank.memory.device_bytes(), late.memory().device_bytes());
  }
  EXPECT_DOUBLE_EQ(late.bubble, 3.0 / (16 + 3));
  const auto short_of = of_llama_8b(run, 0.9 * late.memory().device_bytes());
  EXPECT_FALSE(short_of.fits());
  EXPECT_EQ(remedy(short_of).front().first, "memory.checkpointing");
  EXPECT_THAT(rank_text(short_of, "the device"),
              HasSubstr("Of 8 ranks one with place 3 in the pipeline, in a step"));
}

}  // namespace
}  // namespace tessera::predict
