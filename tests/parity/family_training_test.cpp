// Training of every family that differs in more than its rotary angles, against what PyTorch
// recorded (tests/fixtures/families/make.py): placements, checkpointing and precisions.
#include <gtest/gtest.h>

#include <cmath>

#include "tessera/checkpoint/safetensors.h"
#include "tessera/checkpoint/tensors.h"
#include "tessera/kernels/cpu/memory.h"
#include "tessera/plan/rank_part.h"
#include "tessera/predict/activations.h"
#include "tests/parity/fixture.h"

namespace tessera::parity {
namespace {

constexpr mesh::MeshShape kTwoByTwo{.dp_replicate = 2, .dp_shard = 2};

class FamilyTrainingTest : public ::testing::TestWithParam<std::string> {
 protected:
  const std::string folder_ = "tests/fixtures/families/" + GetParam();

  config::RunConfig job() const {
    auto job = recorded_job(24, 8);
    job.model.path = folder_;
    job.model.init = models::Init::pretrained;
    return job;
  }

  config::RunConfig sharded_job() const {
    auto result = job();
    result.parallel.placement = parallel::Placement::full_shard;
    result.parallel.num_ranks = kTwoByTwo.num_ranks();
    result.parallel.dp_replicate = kTwoByTwo.dp_replicate;
    result.parallel.dp_shard = kTwoByTwo.dp_shard;
    return result;
  }

  Recorded recorded() const {
    const checkpoint::SafetensorsFile file(folder_ + "/expected.safetensors");
    const auto numbers = [&](const char* name) {
      const auto tensor = checkpoint::read_tensor(file, name);
      return std::vector<double>(tensor.data_ptr<double>(),
                                 tensor.data_ptr<double>() + tensor.numel());
    };
    return {numbers("train.loss"), numbers("train.grad_norm")};
  }
};

TEST_P(FamilyTrainingTest, OneRankEqualsTheRecordedRun) {
  on_mesh({.shape = {.dp_replicate = 1}}, [&](const mesh::DeviceMesh& mesh) {
    auto run = train::assemble(job(), mesh);
    expect_recorded(run, recorded());
  });
}

TEST_P(FamilyTrainingTest, ShardedAndCheckpointedEqualsTheRecordedRun) {
  on_mesh({.shape = kTwoByTwo}, [&](const mesh::DeviceMesh& mesh) {
    for (const auto* checkpointing : {"none", "full", "feed_forward", "selective"}) {
      SCOPED_TRACE(checkpointing);
      auto changed = sharded_job();
      changed.memory.checkpointing = *value_named<memory::CheckpointMode>(checkpointing);
      changed.train.micro_batch = 1;
      auto run = train::assemble(changed, mesh);
      expect_recorded(run, recorded());
    }
  });
}

TEST_P(FamilyTrainingTest, Bf16StaysNear) {
  on_mesh({.shape = kTwoByTwo}, [&](const mesh::DeviceMesh& mesh) {
    for (const bool autocast : {false, true}) {
      auto changed = sharded_job();
      changed.precision.compute = FloatType::bf16;
      changed.precision.autocast = autocast;
      changed.memory.checkpointing = memory::CheckpointMode::selective;
      auto run = train::assemble(changed, mesh);
      const auto losses = recorded().losses;
      for (size_t step = 0; step < losses.size(); ++step) {
        const auto loss = train::train_step(run, static_cast<int64_t>(step)).loss;
        EXPECT_NEAR(loss / losses[step], 1, 7e-3) << "autocast " << autocast << ", step " << step;
      }
    }
  });
}

TEST_P(FamilyTrainingTest, ActivationsTakeWhatWasPredicted) {
  on_mesh({.shape = {.dp_replicate = 1}}, [&](const mesh::DeviceMesh& mesh) {
    kernels::install_caching_allocator();
    for (const auto* checkpointing : {"none", "selective"}) {
      auto changed = job();
      changed.memory.checkpointing = *value_named<memory::CheckpointMode>(checkpointing);
      auto run = train::assemble(changed, mesh);
      train::train_step(run, 0);
      const auto predicted = predict::kept_activation_bytes(changed, run.rank_plan().part);
      EXPECT_NEAR(static_cast<double>(run.peak_activations) / static_cast<double>(predicted), 1,
                  0.05)
          << checkpointing;
    }
  });
}

class SharedExpertsTest : public FamilyTrainingTest {};

TEST_P(SharedExpertsTest, EqualTheRecordedRun) {
  on_mesh({.shape = {.dp_replicate = 2, .dp_shard = 2, .ep = 2}},
          [&](const mesh::DeviceMesh& mesh) {
            for (const auto* checkpointing : {"none", "full", "feed_forward", "selective"}) {
              SCOPED_TRACE(checkpointing);
              auto changed = sharded_job();
              changed.parallel.ep = 2;
              changed.memory.checkpointing = *value_named<memory::CheckpointMode>(checkpointing);
              auto run = train::assemble(changed, mesh);
              expect_recorded(run, recorded());
            }
          });
}

INSTANTIATE_TEST_SUITE_P(All, SharedExpertsTest,
                         ::testing::Values("deepseek_v3", "gpt_oss", "pr_moe"),
                         [](const auto& family) { return family.param; });

INSTANTIATE_TEST_SUITE_P(All, FamilyTrainingTest,
                         ::testing::Values("llama_biases", "llama_dynamic", "mistral", "qwen2",
                                           "qwen2_window", "qwen3", "olmo2", "smollm3", "phi3",
                                           "phi3_longrope", "gemma3", "gemma2", "mixtral",
                                           "qwen3_moe", "olmoe", "qwen2_moe", "pr_moe",
                                           "deepseek_v3", "deepseek_v3_plain", "gpt_oss"),
                         [](const auto& family) { return family.param; });

}  // namespace
}  // namespace tessera::parity
