// Adapters whose base is not the stored model as it is: upon other adapters, and PiSSA's.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "tessera/base/testing.h"
#include "tessera/checkpoint/formats/peft.h"
#include "tessera/checkpoint/formats/stored_adapter.h"
#include "tessera/checkpoint/tensors.h"
#include "tessera/inference/model.h"
#include "tessera/models/hf_config.h"
#include "tessera/train/pissa.h"
#include "tests/parity/fixture.h"
#include "tests/support/expect.h"
#include "tests/support/shared_folder.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/train_from.h"

namespace tessera::parity::stacked {
namespace {

namespace fs = std::filesystem;
using models::AdapterInit;
using tessera::testing::message_of;
using ::testing::HasSubstr;

constexpr const char* kBelow = "tests/fixtures/lora_micro";
constexpr int64_t kSteps = 6, kCut = 3;

config::RunConfig job_in(const fs::path& folder) {
  auto job = recorded_job(/*seq_len=*/32, /*global_batch=*/6);
  job.model.path = "tests/fixtures/llama_micro";
  job.model.init = models::Init::pretrained;
  job.adapter.type = models::AdapterType::lora;
  job.adapter.rank = 4;
  job.adapter.alpha = 12;
  job.adapter.targets = {"q_proj", "down_proj"};
  job.adapter.rank_pattern = {{"down_proj", 6}};
  job.optimizer.learning_rate = 1e-2;
  job.train.steps = kSteps;
  job.train.run_dir = folder;
  job.checkpoint.every = kCut;
  return job;
}

struct Kind {
  std::string name;
  std::function<void(config::RunConfig&)> set;
};

// NOLINTNEXTLINE(readability-identifier-naming): GoogleTest looks for this name.
void PrintTo(const Kind& kind, std::ostream* out) { *out << kind.name; }

std::vector<Kind> kinds() {
  return {{"below", [](auto& job) { job.adapter.base = {kBelow}; }},
          {"pissa", [](auto& job) { job.adapter.init = AdapterInit::pissa; }},
          {"pissa_below",
           [](auto& job) {
             job.adapter.base = {kBelow};
             job.adapter.init = AdapterInit::pissa;
             job.adapter.pissa_iterations = 2;
           }},
          {"pissa_dora", [](auto& job) {
             job.adapter.init = AdapterInit::pissa;
             job.adapter.type = models::AdapterType::dora;
           }}};
}

torch::Tensor some_ids() { return torch::arange(40).view({2, 20}); }

class StackedAdapterTest : public ::testing::TestWithParam<Kind> {
 protected:
  static config::RunConfig job(const fs::path& folder) {
    auto job = job_in(folder);
    GetParam().set(job);
    return job;
  }
};

fs::path checkpoint_at(const fs::path& folder, int64_t step) {
  return folder / "checkpoints" / fmt::format("step_{:08}", step);
}

// Two ranks save. Others go on with the same base, whatever they would have found themselves.
TEST_P(StackedAdapterTest, IsGoneOnFromInAnyLayout) {
  const SharedFolder folder;
  const mesh::MeshShape saving{.dp_shard = 2};
  on_mesh({.shape = saving}, [&](const mesh::DeviceMesh& mesh) {
    auto run = train::assemble(over(job(folder.path()), saving), mesh);
    train::Checkpointing checkpointing(run, {});
    const auto losses = train_from(run, {}, kSteps, &checkpointing);
    auto again_job = over(job(folder.path()), saving);
    again_job.checkpoint.resume = checkpoint_at(folder.path(), kCut);
    auto again = train::assemble(again_job, mesh);
    EXPECT_EQ(train_from(again, train::resume(again).counts, kSteps),
              std::vector<double>(losses.begin() + kCut, losses.end()));
  });
  for (const mesh::MeshShape& shape :
       {mesh::MeshShape{}, {.dp_replicate = 3}, {.tp = 2}, {.pp = 2}}) {
    on_mesh({.shape = shape}, [&](const mesh::DeviceMesh& mesh) {
      auto whole = train::assemble(over(job(folder.path()), shape), mesh);
      const auto losses = train_from(whole, {}, kSteps);
      auto resumed = over(job(folder.path()), shape);
      resumed.checkpoint.resume = checkpoint_at(folder.path(), kCut);
      auto run = train::assemble(resumed, mesh);
      const auto rest = train_from(run, train::resume(run).counts, kSteps);
      ASSERT_EQ(rest.size(), static_cast<size_t>(kSteps - kCut));
      for (size_t i = 0; i < rest.size(); ++i) EXPECT_NEAR(rest[i] / losses[kCut + i], 1, 1e-5);
    });
  }
}

// The run, its checkpoint as it answers, its adapter as PEFT's folder beside the stored model, and that folder gone on
// from: one function.
TEST_P(StackedAdapterTest, AnswersAsTheRunDidInEveryForm) {
  const testing::TemporaryFolder folder;  // of each process
  auto run = train::assemble(job(folder.path()), mesh::DeviceMesh());
  const torch::NoGradGuard no_grad;
  train::Checkpointing checkpointing(run, {});
  {
    const torch::AutoGradMode with_gradients(true);
    train_from(run, {}, kSteps, &checkpointing);
  }
  run.model->eval();
  const auto expected = run.model->logits(some_ids()).detach();
  const auto expect_same = [&](models::LanguageModel& model) {
    model.eval();
    expect_close(model.logits(some_ids()), expected, {.absolute = 2e-5, .relative = 1e-4});
  };
  const auto source = checkpoint_at(folder.path(), kSteps);
  for (const int tp : {1, 2}) {
    on_mesh({.shape = {.tp = tp}}, [&](const mesh::DeviceMesh& mesh) {
      const torch::NoGradGuard no_gradients;
      expect_same(*inference::load_model({.source = source}, std::nullopt, mesh).model);
    });
  }
  const auto training = checkpoint::open_training({.source = source, .with_optimizer = false});
  const auto stored = checkpoint::stored_adapter(training, source).value();
  const auto shape = run.model->shape();
  const auto sum = checkpoint::sum_of_adapters(
      checkpoint::parts_of_base(stored, shape),
      {.spec = stored.spec, .tensors = {std::shared_ptr<void>(), &training.tensors}}, shape);
  const auto as_peft = folder.path() / "as_peft";
  checkpoint::write_peft(*sum.tensors, shape, as_peft, {.config = {.spec = sum.spec}, .dtype = {}});
  auto plain = job_in(folder.path() / "plain");
  plain.adapter = {};
  plain.adapter.type = stored.spec.type;
  plain.adapter.path = as_peft;
  expect_same(*train::assemble(plain, mesh::DeviceMesh()).model);
  if (stored.spec.init != AdapterInit::pissa || !job(folder.path()).adapter.base.empty()) return;
  // As PEFT saves it without converting it: the base is made again of the singular values.
  const auto unconverted = folder.path() / "unconverted";
  checkpoint::write_peft(training.tensors, shape, unconverted,
                         {.config = {.spec = stored.spec}, .dtype = {}});
  plain.adapter.path = unconverted;
  expect_same(*train::assemble(plain, mesh::DeviceMesh()).model);
}

// A run begins with the function of its base.
TEST_P(StackedAdapterTest, BeginsAsItsBase) {
  const testing::TemporaryFolder folder;
  const torch::NoGradGuard no_grad;
  auto base = job(folder.path());
  base.adapter.init = AdapterInit::kaiming, base.adapter.pissa_iterations = 0;
  const auto expected =
      train::assemble(base, mesh::DeviceMesh()).model->logits(some_ids()).detach();
  const auto found =
      train::assemble(job(folder.path()), mesh::DeviceMesh()).model->logits(some_ids());
  expect_close(found, expected, {.absolute = 1e-5, .relative = 1e-5});
}

INSTANTIATE_TEST_SUITE_P(All, StackedAdapterTest, ::testing::ValuesIn(kinds()),
                         [](const auto& info) { return info.param.name; });

// What is in 4 bits is what the largest singular values leave: less is lost than without.
TEST(Pissa, QuantisesWhatItLeaves) {
  const torch::NoGradGuard no_grad;
  const SharedFolder folder;
  auto job = job_in(folder.path());
  job.adapter.targets = {"all-linear"}, job.adapter.rank_pattern = {};
  job.adapter.rank = 16, job.adapter.alpha = 16;
  const auto whole = train::assemble(job, mesh::DeviceMesh()).model->logits(some_ids());
  job.model.weights = WeightFormat::nf4;
  const auto lost = [&](AdapterInit init) {
    job.adapter.init = init;
    const auto logits = train::assemble(job, mesh::DeviceMesh()).model->logits(some_ids());
    return (logits - whole).norm().item<double>();
  };
  EXPECT_LT(lost(AdapterInit::pissa), 0.9 * lost(AdapterInit::kaiming));
}

TEST(Pissa, IterationsComeCloseToSingularValues) {
  const auto shape = models::read_model_shape("tests/fixtures/llama_micro/config.json");
  const checkpoint::Safetensors base("tests/fixtures/llama_micro");
  models::AdapterSpec spec{.type = models::AdapterType::lora,
                           .rank = 8,
                           .alpha = 4,
                           .targets = {"up_proj", "down_proj"},
                           .init = AdapterInit::pissa};
  const auto product = [&](const checkpoint::AdapterPart& part, const std::string& module) {
    return checkpoint::read_tensor(*part.tensors, module + ".lora_B")
        .mm(checkpoint::read_tensor(*part.tensors, module + ".lora_A"));
  };
  const auto exact = train::pissa_start(spec, shape, 1, base, mesh::Axis());
  spec.pissa_iterations = 16;
  const auto close = train::pissa_start(spec, shape, 1, base, mesh::Axis());
  for (const char* name : {"up_proj", "down_proj"}) {
    const auto module = fmt::format("model.layers.1.mlp.{}", name);
    const auto weight = checkpoint::read_tensor(base, module + ".weight");
    const double left = (weight - 0.5 * product(exact, module)).norm().item<double>();
    const double left_of_close = (weight - 0.5 * product(close, module)).norm().item<double>();
    EXPECT_LT(left, 0.99 * weight.norm().item<double>());
    EXPECT_GE(left_of_close, left * (1 - 1e-6));  // nothing of this rank takes more
    EXPECT_LE(left_of_close, left * 1.005);
  }
}

TEST(StackedAdapter, SlipsAreOneLine) {
  const SharedFolder folder;
  const auto refused = [&](const std::function<void(config::RunConfig&)>& change) {
    auto job = job_in(folder.path());
    change(job);
    return message_of([&] { train::assemble(job, mesh::DeviceMesh()); });
  };
  EXPECT_THAT(refused([](auto& job) { job.adapter.base = {"tests/fixtures/llama_micro"}; }),
              HasSubstr("tests/fixtures/llama_micro: no adapter; expected a folder with"));
  EXPECT_THAT(refused([](auto& job) {
                job.adapter.init = AdapterInit::orthogonal;
                job.adapter.rank = 5;
              }),
              HasSubstr("adapter.rank: expected an even one of model.layers.0.self_attn.q_proj"));
  EXPECT_THAT(refused([](auto& job) {
                job.adapter.init = AdapterInit::pissa;
                job.adapter.targets = {"embed_tokens"}, job.adapter.rank_pattern = {};
              }),
              HasSubstr("adapter.init: pissa takes singular values of linear layers"));
}

TEST(StackedAdapter, ACheckpointIsRefusedUponOthers) {
  const SharedFolder folder;
  auto job = job_in(folder.path());
  job.adapter.base = {kBelow};
  auto run = train::assemble(job, mesh::DeviceMesh());
  train::Checkpointing checkpointing(run, {});
  train_from(run, {}, kSteps, &checkpointing);
  job.checkpoint.resume = "auto";
  job.adapter.base = {};
  auto other = train::assemble(job, mesh::DeviceMesh());
  EXPECT_THAT(message_of([&] { train::resume(other); }),
              HasSubstr("of an adapter upon others than adapter.base's; set it to ["));
}

}  // namespace
}  // namespace tessera::parity::stacked
