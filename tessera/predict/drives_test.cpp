#include "tessera/predict/drives.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tessera::predict {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

struct StoredJob {
  config::RunConfig config;
  models::ModelShape shape = models::model_preset("tiny");

  explicit StoredJob(int64_t ranks) {
    config.parallel.num_ranks = ranks;
    config.parallel.placement = parallel::Placement::full_shard;
    config.parallel.offload_optimizer = parallel::OffloadOptimizer::nvme;
    config.train.global_batch = ranks;
    config.offload.host_memory = 2;  // MiB: one for slices
    shape.num_layers = 8;
  }
  DriveTraffic traffic() const {
    return drive_traffic(config, plan::make_plan(config, shape).ranks[0]);
  }
  double parameters() const { return static_cast<double>(models::num_parameters(shape)); }
  double table() const { return static_cast<double>(shape.vocab_size * shape.dim); }
  double head() const { return static_cast<double>((shape.vocab_size + 1) * shape.dim); }
};

void expect_moved(const DriveTraffic& found, const DriveTraffic& expected) {
  EXPECT_DOUBLE_EQ(found.stored, expected.stored);
  EXPECT_DOUBLE_EQ(found.read_for_passes, expected.read_for_passes);
  EXPECT_DOUBLE_EQ(found.read_for_update, expected.read_for_update);
  EXPECT_DOUBLE_EQ(found.written, expected.written);
}

constexpr double kMib = 1 << 20;

TEST(Drives, StatesMoveBothWaysAndMastersWithThem) {
  StoredJob job(2);
  const double p = job.parameters() / 2;
  expect_moved(job.traffic(), {.stored = 8 * p, .read_for_update = 8 * p, .written = 8 * p});
  job.config.precision.compute = FloatType::bf16;
  expect_moved(job.traffic(), {.stored = 12 * p, .read_for_update = 12 * p, .written = 12 * p});
  job.config.optimizer.type = optim::OptimizerType::muon;  // its masters stay in memory
  EXPECT_LT(job.traffic().stored, 8 * p);
}

TEST(Drives, SlicesAreReadForEachGatherButForWhatIsStillThere) {
  StoredJob job(2);
  job.config.parallel.offload_params = parallel::OffloadParams::nvme;
  const double p = job.parameters() / 2, head = job.head() / 2, table = job.table() / 2;
  // The last unit stays whole until its backward; the table's backward does not read it. One MiB stays from the forward to the backward, one
  // from there to the update.
  expect_moved(job.traffic(), {.stored = 12 * p,
                               .read_for_passes = 4 * (2 * p - head - table) - kMib,
                               .read_for_update = 12 * p - kMib,
                               .written = 12 * p});
  job.config.precision.compute = FloatType::bf16;
  expect_moved(job.traffic(), {.stored = 14 * p,
                               .read_for_passes = 2 * (2 * p - head - table) - kMib,
                               .read_for_update = 12 * p,
                               .written = 14 * p});
  job.config.train.global_batch = 4;  // two micro-batches
  job.config.train.micro_batch = 1;
  expect_moved(job.traffic(), {.stored = 14 * p,
                               .read_for_passes = 2 * (4 * p - 2 * head - 2 * table) - 3 * kMib,
                               .read_for_update = 12 * p,
                               .written = 14 * p});
  job.config.offload.host_memory = 1024;  // all slices stay
  EXPECT_EQ(job.traffic().read_for_passes, 0);
}

TEST(Drives, ActivationsMoveBetweenForwardAndBackwardButForWhatIsStillThere) {
  StoredJob job(2);
  job.config.parallel.offload_optimizer = parallel::OffloadOptimizer::none;
  job.config.memory.checkpointing = memory::CheckpointMode::full;
  job.config.memory.offload_activations = memory::OffloadActivations::nvme;
  job.config.data.seq_len = 256;
  job.config.offload.host_memory = 1;
  // Eight inputs of 256 tokens of 256 numbers.
  const auto expect_activations = [&](double most, double written, double read) {
    const auto found = job.traffic();
    EXPECT_DOUBLE_EQ(found.activations, most * kMib);
    EXPECT_DOUBLE_EQ(found.activations_written, written * kMib);
    EXPECT_DOUBLE_EQ(found.activations_read, read * kMib);
    EXPECT_DOUBLE_EQ(found.written_in_all(), found.written + written * kMib);
  };
  expect_activations(2, 2, 1);
  EXPECT_EQ(job.traffic().stored, 0);
  job.config.train.global_batch = 4;  // two micro-batches
  job.config.train.micro_batch = 1;
  expect_activations(2, 4, 2);
  job.config.memory.checkpoint_every = 2;
  expect_activations(1, 2, 0);
  job.config.parallel.offload_optimizer = parallel::OffloadOptimizer::nvme;  // has the other half
  expect_activations(1, 2, 1);
  EXPECT_THAT(drive_lines(job.traffic()),
              ElementsAre(HasSubstr("a rank keeps"),
                          HasSubstr("activations take 1.0 MiB of drives at the most; a step writes "
                                    "2.0 MiB and reads 1.0 MiB"),
                          HasSubstr("wear: ")));
}

TEST(Drives, LinesSayWhatIsMovedAndHowItWears) {
  EXPECT_THAT(drive_lines({}), IsEmpty());
  EXPECT_THAT(
      drive_lines(
          {.stored = 40e9, .read_for_passes = 8e9, .read_for_update = 20e9, .written = 24e9}),
      ElementsAre(HasSubstr("a step reads 26.1 GiB"), HasSubstr("10,000 steps write 240 TB")));
}

}  // namespace
}  // namespace tessera::predict
