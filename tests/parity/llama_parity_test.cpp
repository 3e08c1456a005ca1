// Llama against what PyTorch and transformers recorded, on 1, 2 and 4 ranks.
#include <gtest/gtest.h>

#include "tessera/checkpoint/formats/pretrained.h"
#include "tessera/checkpoint/safetensors.h"
#include "tessera/checkpoint/tensors.h"
#include "tessera/data/dataset.h"
#include "tessera/models/hf_config.h"
#include "tests/parity/fixture.h"

namespace tessera::parity {
namespace {

std::shared_ptr<models::LanguageModel> micro(
    const std::string& folder = "tests/fixtures/llama_micro") {
  auto model = models::make_language_model(models::read_model_shape(folder + "/config.json"));
  checkpoint::load_pretrained(*model, folder);
  return model;
}

double largest_difference(const torch::Tensor& a, const torch::Tensor& b) {
  return (a - b).abs().max().item<double>();
}

TEST(LlamaMicro, LogitsEqualTransformers) {
  const torch::NoGradGuard no_grad;
  const checkpoint::SafetensorsFile expected("tests/fixtures/llama_micro/expected.safetensors");
  for (const auto* folder : {"tests/fixtures/llama_micro", "tests/fixtures/llama_micro_sharded"}) {
    const auto logits = micro(folder)->logits(checkpoint::read_tensor(expected, "input_ids"));
    EXPECT_LT(largest_difference(logits.slice(0, 0, 2),
                                 checkpoint::read_tensor(expected, "logits_rows_0_1")),
              1e-5)
        << folder;
  }
}

TEST(LlamaMicro, RecipeEqualsTheStoredWeightsToTheBit) {
  auto recipe = models::make_language_model(models::model_preset("micro"));
  models::initialise(*recipe, 1234, 0.02);
  const auto stored = micro()->named_parameters();
  for (const auto& item : recipe->named_parameters())
    EXPECT_TRUE(torch::equal(item.value(), stored[item.key()])) << item.key();
}

TEST(LlamaMicro, FirstGradientsEqualPyTorch) {
  const checkpoint::SafetensorsFile expected("tests/fixtures/llama_micro/expected.safetensors");
  const checkpoint::SafetensorsFile gradients("tests/fixtures/llama_micro/grads_step1.safetensors");
  auto model = micro();
  const auto targets = checkpoint::read_tensor(expected, "targets");
  model
      ->loss(checkpoint::read_tensor(expected, "input_ids"), targets,
             1.0 / static_cast<double>(targets.numel()))
      .backward();
  for (const auto& item : model->named_parameters()) {
    EXPECT_LT(
        largest_difference(item.value().grad(), checkpoint::read_tensor(gradients, item.key())),
        1e-6)
        << item.key();
  }
}

TEST(LlamaTiny, FirstLogitsEqualPyTorch) {
  const torch::NoGradGuard no_grad;
  const auto parity = read_fixture("llama_tiny/parity.json");
  auto model = models::make_language_model(models::model_preset("tiny"));
  models::initialise(*model, 1234, 0.02);
  const auto datasets = data::open_datasets({.train = {.paths = {"tests/fixtures/tokens_head.bin"}},
                                             .validation_fraction = 0,
                                             .seq_len = 256});
  const data::Loader loader(std::make_shared<data::Dataset>(datasets.train), {.shuffle = false});
  const auto logits = model->logits(loader.batch(0).inputs)[0].slice(1, 0, 256);
  const auto expect_row = [&](int64_t position, const char* key) {
    const auto row =
        torch::tensor(parity["first_batch"][key].get<std::vector<double>>(), torch::kFloat64);
    EXPECT_LT(largest_difference(logits[position].to(torch::kFloat64), row), 1e-5) << key;
  };
  expect_row(0, "logits_row0_pos0_first256");
  expect_row(-1, "logits_row0_last_first256");
}

class LlamaTrainingTest : public RankTest {};

Recorded recorded(const std::string& size) {
  const auto parity = read_fixture("llama_" + size + "/parity.json")[size]["ddp_2ranks_fp32"];
  return {parity["loss"], parity["grad_norm"]};
}

TEST_P(LlamaTrainingTest, MicroEqualsTheRecordedRun) {
  on_mesh({.shape = {.dp_replicate = GetParam()}}, [](const mesh::DeviceMesh& mesh) {
    auto job = recorded_job(64, 8);
    job.model.path = "tests/fixtures/llama_micro";
    job.model.init = models::Init::pretrained;
    auto run = train::assemble(job, mesh);
    expect_recorded(run, recorded("micro"));
    const checkpoint::SafetensorsFile after(
        "tests/fixtures/llama_micro/model_after_20_steps.safetensors");
    for (const auto& item : run.model->named_parameters()) {
      EXPECT_LT(largest_difference(item.value(), checkpoint::read_tensor(after, item.key())), 2e-5)
          << item.key();
    }
  });
}

TEST_P(LlamaTrainingTest, MicroBatchesChangeNothing) {
  on_mesh({.shape = {.dp_replicate = GetParam()}}, [](const mesh::DeviceMesh& mesh) {
    auto job = recorded_job(64, 8);
    job.model.preset = "micro";
    job.train.micro_batch = 1;
    auto run = train::assemble(job, mesh);
    expect_recorded(run, recorded("micro"));
  });
}

TEST_P(LlamaTrainingTest, TinyEqualsTheRecordedRun) {
  on_mesh({.shape = {.dp_replicate = GetParam()}}, [](const mesh::DeviceMesh& mesh) {
    auto job = recorded_job(256, 8);
    job.model.preset = "tiny";
    auto run = train::assemble(job, mesh);
    expect_recorded(run, recorded("tiny"));
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, LlamaTrainingTest, ::testing::Values(1, 2, 4));

// Three ranks do not divide eight rows: 2, 3 and 3.
class LlamaUnevenTest : public RankTest {};

TEST_P(LlamaUnevenTest, UnevenSharesChangeNothing) {
  on_mesh({.shape = {.dp_replicate = GetParam()}}, [](const mesh::DeviceMesh& mesh) {
    auto job = recorded_job(64, 8);
    job.model.preset = "micro";
    auto run = train::assemble(job, mesh);
    expect_recorded(run, recorded("micro"));
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, LlamaUnevenTest, ::testing::Values(3, 5));

}  // namespace
}  // namespace tessera::parity
