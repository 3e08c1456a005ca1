#include "tessera/plan/pipeline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/file.h"

namespace tessera::plan {
namespace {

using ::testing::ElementsAre;

TEST(CutLayers, SharesCostsEvenly) {
  EXPECT_THAT(cut_layers(8, 4, {}), ElementsAre(2, 2, 2, 2));
  EXPECT_THAT(cut_layers(8, 3, {}), ElementsAre(2, 3, 3));
  EXPECT_THAT(cut_layers(8, 4, {.head = 1}), ElementsAre(2, 2, 2, 2));
  EXPECT_THAT(cut_layers(8, 4, {.head = 2}), ElementsAre(2, 2, 3, 1));
  // A head as costly as several layers stands alone.
  EXPECT_THAT(cut_layers(4, 4, {.head = 3}), ElementsAre(1, 1, 2, 0));
  EXPECT_THAT(cut_layers(5, 1, {.head = 3}), ElementsAre(5));
}

struct PlanJob {
  config::RunConfig config;
  models::ModelShape shape;

  PlanJob() {
    config.parallel.pp = 4;
    config.train.global_batch = 8;
    shape = models::model_preset("tiny");
    shape.num_layers = 8;
  }
  PipelinePlan plan() const {
    return pipeline_plan(config, shape, {.pp = static_cast<int>(config.parallel.pp)});
  }
  std::string error() const {
    try {
      plan();
    } catch (const UserError& error) {
      return error.what();
    }
    return "none";
  }
};

TEST(PipelinePlan, ReadsTheSection) {
  PlanJob job;
  job.config.parallel.stage_layers = {0, 4, 4, 0};
  auto plan = job.plan();
  EXPECT_EQ(plan.schedule.name, "1F1B");
  EXPECT_EQ(plan.schedule.num_micro_batches, 8);  // a sequence each
  EXPECT_EQ(plan.layers_of(2).begin, 4);
  EXPECT_EQ(plan.layers_of(3).begin, plan.layers_of(3).end);

  job.config.parallel.stage_layers.clear();
  job.config.parallel.stage_balance = parallel::StageBalance::layers;
  job.config.parallel.pipeline_schedule = "interleaved1f1b";
  job.config.train.micro_batch = 2;
  plan = job.plan();
  EXPECT_EQ(plan.schedule.num_stages, 8);
  EXPECT_EQ(plan.schedule.num_micro_batches, 4);
  EXPECT_THAT(plan.stage_layers, ::testing::Each(1));
}

TEST(PipelinePlan, RefusesInOneLine) {
  PlanJob job;
  job.config.parallel.stages_per_rank = 3;
  job.config.parallel.pipeline_schedule = "LoopedBFS";
  EXPECT_EQ(job.error(),
            "parallel.pp: 8 layers cannot be divided over 12 stages (4 ranks, LoopedBFS); set "
            "fewer");
  job.config.parallel.stages_per_rank = 0;
  job.config.parallel.pipeline_schedule = "1F2B";
  EXPECT_THAT(job.error(), ::testing::StartsWith("parallel.pipeline_schedule: "));
  job.config.parallel.pipeline_schedule = "DualPipeV";
  job.config.train.micro_batch = 2;
  EXPECT_THAT(job.error(), ::testing::AllOf(::testing::StartsWith("parallel.pipeline_schedule: "),
                                            ::testing::HasSubstr("micro-batches")));
  job.config.parallel.pipeline_schedule = "1F1B";
  job.config.parallel.stage_layers = {4, 0, 2, 2};
  EXPECT_EQ(job.error(),
            "parallel.stage_layers: stage 1: expected at least one layer, got none; only the first "
            "stage and the last may be without");
  job.config.parallel.stage_layers = {4, 4};
  EXPECT_EQ(job.error(),
            "parallel.stage_layers: expected 4 numbers, one a stage, whose sum is the model's 8 "
            "layers, got [4, 4]");
}

TEST(PipelinePlan, TakesATableThatFits) {
  const auto path = ::testing::TempDir() + "pipeline_plan_test.csv";
  write_file(path, "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n");
  PlanJob job;
  job.config.parallel.pipeline_schedule = path;
  job.config.parallel.pp = 2;
  EXPECT_EQ(job.error(),
            "train.micro_batch: expected 2 micro-batches of each data rank's share, "
            "which " +
                path + " is for, got 8");
  job.config.train.micro_batch = 4;
  EXPECT_EQ(job.plan().schedule.num_micro_batches, 2);
  job.config.parallel.pp = 4;
  EXPECT_EQ(job.error(), "parallel.pp: expected 2 ranks, which " + path + " is for, got 4");
}

}  // namespace
}  // namespace tessera::plan
