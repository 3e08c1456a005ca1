#include "tessera/predict/step_time.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tessera::predict {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// Eight layers of one rank, AdamW in float32: 8 bytes of states a number, on drives of 1 GB/s.
struct TimedJob {
  config::RunConfig config;
  models::ModelShape shape = models::model_preset("tiny");
  DriveSpeed speed{.read = 1, .write = 1, .both = 1};
  ComputeSpeed computing{.layers = {.embedding = 0, .block = 0.003, .head = 0.006}, .update = 1e-9};

  TimedJob() {
    config.parallel.num_ranks = 1;
    config.parallel.placement = parallel::Placement::full_shard;
    config.parallel.offload_optimizer = parallel::OffloadOptimizer::nvme;
    config.train.global_batch = 1;
    config.offload.host_memory = 1;
    shape.num_layers = 8;
  }
  double numbers() const { return static_cast<double>(models::num_parameters(shape)); }
  double passes() const { return 8 * computing.layers.block + computing.layers.head; }
  double states() const { return 8 * numbers() / 1e9; }
  StepTime time(double bubble = 0) const {
    const auto rank = plan::make_plan(config, shape).ranks[0];
    return step_time(config, rank, drive_traffic(config, rank), speed, computing, bubble);
  }
};

// Of the drives' work, what all buffers but two hold is done while the rank computes.
TEST(StepTime, UpdatesAfterABackwardWaitForAllThatBuffersDoNotHold) {
  const TimedJob job;
  const auto time = job.time();
  const double ahead = 30.0 / 32 * (1 << 20) / 1e9;
  EXPECT_NEAR(time.transfer_seconds, job.states(), 1e-9);
  EXPECT_NEAR(time.update_seconds, 1e-9 * job.numbers(), 1e-9);
  EXPECT_NEAR(time.compute_seconds, job.passes() + time.update_seconds, 1e-9);
  EXPECT_NEAR(time.seconds, job.passes() + job.states() - ahead, 0.05 * ahead);
}

TEST(StepTime, WhatRanksBringToOneAnotherIsComputing) {
  TimedJob job;
  const auto alone = job.time();
  job.computing.exchange = 0.02;
  EXPECT_NEAR(job.time().compute_seconds - alone.compute_seconds, 0.02, 1e-9);
}

TEST(StepTime, UpdatesThatTakeLongerThanTheDrivesHideThem) {
  TimedJob job;
  job.computing.update = 20e-9;
  const auto time = job.time();
  EXPECT_NEAR(time.seconds, time.compute_seconds, 1e-9);
  EXPECT_FALSE(time.bound_by_drives());
}

// More memory holds more of what is read ahead, up to all but two parts of what there is.
TEST(StepTime, BuffersHideTransfersBehindPassesThatTakeLonger) {
  TimedJob job;
  job.computing.layers.block = 1;
  const auto waits = [&job](int64_t host_memory) {
    job.config.offload.host_memory = host_memory;
    const auto time = job.time();
    return (time.seconds - job.passes() - time.update_seconds) / job.states();
  };
  EXPECT_GT(waits(4), 0.8);
  EXPECT_LT(waits(24), 0.6);
  EXPECT_LT(waits(1024), 0.5);
  EXPECT_DOUBLE_EQ(waits(1024), waits(2048));
}

// In the backward a unit's update waits for its own states alone, and the next one's come meanwhile.
TEST(StepTime, UpdatesInTheBackwardRunBesideIt) {
  TimedJob job;
  job.config.offload.host_memory = 8;
  const auto after = job.time();
  job.config.optimizer.in_backward = true;
  const auto inside = job.time();
  EXPECT_LT(inside.seconds, after.seconds - 0.01);
  EXPECT_GE(inside.seconds, std::max(job.states(), inside.compute_seconds));
  EXPECT_NEAR(inside.transfer_seconds, after.transfer_seconds, 1e-9);
}

// Twice a step each slice comes, but for those that are still there, the table's once.
TEST(StepTime, SlicesAreWaitedForWherePassesTakeLess) {
  TimedJob job;
  job.config.parallel.offload_params = parallel::OffloadParams::nvme;
  job.config.offload.host_memory = 24;
  const auto time = job.time();
  const auto traffic = drive_traffic(job.config, plan::make_plan(job.config, job.shape).ranks[0]);
  const double slices = traffic.read() + traffic.written - 16 * job.numbers();
  const double moved = slices / 1e9 + job.states();
  EXPECT_NEAR(time.transfer_seconds, moved, 0.1 * moved);
  job.speed.read = 1e3;
  EXPECT_LT(job.time().seconds, time.seconds);
}

// A quarter of a second for each GB, half of the computing while drives move: beside passes, and no longer once buffers are full.
TEST(StepTime, DrivesTakeOfComputing) {
  TimedJob job;
  job.config.offload.host_memory = 24;
  job.computing.layers.block = 1;
  const auto free = job.time();
  job.speed.seconds_lost = 0.25;
  const auto shared = job.time();
  const double hidden = job.states() - (free.seconds - job.passes() - free.update_seconds);
  EXPECT_NEAR(shared.seconds - free.seconds, 0.5 * hidden, 0.1 * job.states());
  EXPECT_NEAR(shared.compute_seconds - free.compute_seconds, shared.seconds - free.seconds, 1e-9);
}

TEST(StepTime, APipelineStandsStillForItsBubble) {
  const TimedJob job;
  const auto alone = job.time(), bubbling = job.time(0.2);
  EXPECT_NEAR(bubbling.compute_seconds, alone.compute_seconds / 0.8, 1e-9);
  EXPECT_NEAR(bubbling.seconds - alone.seconds, alone.compute_seconds / 4, 1e-9);
}

TEST(StepTime, LinesSayWhatBoundsAStep) {
  const DriveTraffic traffic{.stored = 40e9, .read_for_update = 24e9, .written = 24e9};
  const StepTime time{
      .seconds = 32, .compute_seconds = 12, .update_seconds = 2, .transfer_seconds = 24};
  EXPECT_THAT(step_lines(traffic, {.read = 4, .write = 2, .both = 1, .seconds_lost = 0.3}, time,
                         /*tokens=*/1000,
                         /*num_ranks=*/2),
              ElementsAre(HasSubstr("4.00 GB/s read, 2.00 written, 1.00 each way at once; 0.30 s "
                                    "of computing lost for each GB"),
                          HasSubstr("a step takes about 32.0 s: computing 12.0 s (2.0 s of it "
                                    "updates), transfers 24.0 s, 20.0 s of them waited for; the "
                                    "drives bound it"),
                          HasSubstr("from 2.2 K tokens a step on; this run has 1 K"),
                          HasSubstr("wear: 44.7 GiB written a step by all ranks, 130 TB a day")));
}

}  // namespace
}  // namespace tessera::predict
