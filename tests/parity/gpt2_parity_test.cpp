// GPT-2 against what transformers recorded, on 1, 2 and 4 ranks.
#include <gtest/gtest.h>

#include "tessera/checkpoint/formats/pretrained.h"
#include "tessera/checkpoint/safetensors.h"
#include "tessera/checkpoint/tensors.h"
#include "tessera/models/hf_config.h"
#include "tests/parity/fixture.h"

namespace tessera::parity {
namespace {

constexpr const char* kFolder = "tests/fixtures/gpt2_micro";

TEST(Gpt2Micro, LogitsEqualTransformers) {
  const torch::NoGradGuard no_grad;
  const checkpoint::SafetensorsFile expected(std::string(kFolder) + "/expected.safetensors");
  auto model =
      models::make_language_model(models::read_model_shape(std::string(kFolder) + "/config.json"));
  checkpoint::load_pretrained(*model, kFolder);
  const auto logits = model->logits(checkpoint::read_tensor(expected, "input_ids"));
  EXPECT_LT((logits - checkpoint::read_tensor(expected, "logits")).abs().max().item<double>(),
            1e-5);
}

class Gpt2TrainingTest : public RankTest {};

// transformers shifts labels itself: the last position of a row predicts nothing.
void ignore_last_targets(data::Batch& batch) {
  batch.targets.select(1, -1).fill_(data::kIgnoredTarget);
}

TEST_P(Gpt2TrainingTest, EqualsTheRecordedRun) {
  on_mesh({.shape = {.dp_replicate = GetParam()}}, [](const mesh::DeviceMesh& mesh) {
    const auto recorded = read_fixture("gpt2_micro/parity.json")["train"];
    auto job = recorded_job(32, 4);
    job.model.path = kFolder;
    job.model.init = models::Init::pretrained;
    auto run = train::assemble(job, mesh);
    for (size_t step = 0; step < recorded["loss"].size(); ++step) {
      auto batches = train::micro_batches(run, run.train_loader, static_cast<int64_t>(step));
      for (auto& batch : batches) {
        ignore_last_targets(batch);
        batch.num_tokens = batch.inputs.size(0) * 31;
      }
      const auto result = train::train_step(run, static_cast<int64_t>(step), batches);
      EXPECT_NEAR(result.loss / recorded["loss"][step].get<double>(), 1, 2e-5)
          << "step " << step + 1;
      EXPECT_NEAR(result.grad_norm / recorded["grad_norm"][step].get<double>(), 1, 2e-4)
          << "step " << step + 1;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, Gpt2TrainingTest, ::testing::Values(1, 2, 4));

}  // namespace
}  // namespace tessera::parity
