// Training with 8-bit products: each recipe beside float32, on any number of ranks along every axis, and
// resumed in the middle.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "tessera/base/error.h"
#include "tessera/nn/linear.h"
#include "tessera/train/checkpointing.h"
#include "tessera/train/resume.h"
#include "tests/parity/fixture.h"
#include "tests/support/scaled_mm.h"
#include "tests/support/shared_folder.h"

namespace tessera::parity {
namespace {

constexpr int64_t kSteps = 4;

config::RunConfig fp8_job(Matmul matmul) {
  auto job = recorded_job(/*seq_len=*/16, /*global_batch=*/6);
  job.model.preset = "micro";
  job.precision.matmul = matmul;
  job.precision.fp8_pad = matmul != Matmul::as_compute;  // tp leaves parts of any size
  if (matmul == Matmul::fp8_delayed) job.precision.fp8_amax_history = 3;
  return job;
}

std::vector<double> losses_of(train::Run& run, int64_t begin, int64_t end) {
  std::vector<double> losses;
  for (int64_t step = begin; step < end; ++step) {
    losses.push_back(train::train_step(run, step).loss);
  }
  return losses;
}

std::vector<double> losses_of(const config::RunConfig& job, const mesh::DeviceMesh& mesh) {
  config::check(job, {});
  auto run = train::assemble(job, mesh);
  return losses_of(run, 0, kSteps);
}

constexpr Matmul kRecipes[] = {Matmul::fp8_tensor,      Matmul::fp8_delayed, Matmul::fp8_row,
                               Matmul::fp8_row_wgrad16, Matmul::fp8_block,   Matmul::mxfp8};

class Fp8Recipes : public ::testing::TestWithParam<Matmul> {};

TEST_P(Fp8Recipes, LossesAreNearThoseOfFloat32ButNotThose) {
  const mesh::DeviceMesh mesh;
  const auto plain = losses_of(fp8_job(Matmul::as_compute), mesh);
  const auto rounded = losses_of(fp8_job(GetParam()), mesh);
  for (size_t i = 0; i < plain.size(); ++i) EXPECT_NEAR(rounded[i] / plain[i], 1, 0.01) << i;
  EXPECT_NE(rounded, plain);
  EXPECT_EQ(rounded, losses_of(fp8_job(GetParam()), mesh));  // a repeated run has the same bits
  auto recomputed = fp8_job(GetParam());
  recomputed.memory.checkpointing = memory::CheckpointMode::full;
  EXPECT_EQ(rounded, losses_of(recomputed, mesh));
}

/// By the units of a device, of which there is none here: their operator written out for the CPU.
TEST_P(Fp8Recipes, RunsByUnitsAreThoseOfTheEmulation) {
  const testing::ScaledMmScope scope;
  const auto job = fp8_job(GetParam());
  config::check(job, {});
  auto run = train::assemble(job, mesh::DeviceMesh()),
       emulated = train::assemble(job, mesh::DeviceMesh());
  auto recipe = job.precision.fp8_recipe();
  recipe.by_device = true;
  const auto modules = run.model->named_modules();
  for (const auto& layer : run.fp8) {
    modules[layer.path]->as<nn::LinearImpl>()->products =
        kernels::fp8_products(recipe, layer.watch, layer.history);
  }
  for (int64_t step = 0; step < kSteps; ++step) {
    const auto got = train::train_step(run, step), want = train::train_step(emulated, step);
    EXPECT_NEAR(got.loss / want.loss, 1, 1e-3) << step;
    ASSERT_EQ(got.fp8.size(), want.fp8.size());
    for (size_t i = 0; i < got.fp8.size() && step == 0; ++i) {
      for (size_t j = 0; j < got.fp8[i].operands.size(); ++j) {
        const auto &ours = got.fp8[i].operands[j], &theirs = want.fp8[i].operands[j];
        EXPECT_NEAR(ours.amax / theirs.amax, 1, 0.05) << got.fp8[i].path << " " << j;
        if (j == 2)
          continue;  // gradients of a first token's key are zero but for the order of sums
        EXPECT_NEAR(ours.underflow, theirs.underflow, 0.01) << got.fp8[i].path << " " << j;
      }
    }
  }
  EXPECT_FALSE(testing::ScaledMmScope::calls().empty());
}

INSTANTIATE_TEST_SUITE_P(Recipes, Fp8Recipes, ::testing::ValuesIn(kRecipes),
                         [](const auto& info) { return std::string(text_of(info.param)); });

TEST(Fp8, LossesDoNotDependOnTheRanks) {
  std::map<Matmul, std::vector<double>> expected;
  for (const auto matmul : {Matmul::fp8_delayed, Matmul::fp8_row})
    expected[matmul] = losses_of(fp8_job(matmul), {});
  for (const mesh::MeshShape& shape :
       {mesh::MeshShape{.dp_replicate = 2}, {.dp_shard = 3}, {.tp = 2}, {.pp = 2}}) {
    on_mesh({.shape = shape}, [&](const mesh::DeviceMesh& mesh) {
      for (const auto& [matmul, losses] : expected) {
        const auto found = losses_of(over(fp8_job(matmul), shape), mesh);
        for (size_t i = 0; i < found.size(); ++i) {
          // Other numbers share a scale.
          EXPECT_NEAR(found[i] / losses[i], 1, 2e-3) << text_of(matmul) << " " << i;
        }
      }
    });
  }
}

/// Scales of earlier steps are part of the state: over other ranks, too.
TEST(Fp8, DelayedScalesGoOnFromACheckpoint) {
  const SharedFolder folder;
  for (const mesh::MeshShape& shape : {mesh::MeshShape{}, {.dp_shard = 2}, {.tp = 2}, {.pp = 2}}) {
    on_mesh({.shape = shape}, [&](const mesh::DeviceMesh& mesh) {
      auto job = over(fp8_job(Matmul::fp8_delayed), shape);
      job.train.run_dir =
          (folder.path() / fmt::format("{}", shape.num_ranks() * 10 + shape.tp)).string();
      job.train.steps = kSteps;
      job.checkpoint.every = 2;
      job.checkpoint.overwrite = true;
      std::vector<double> whole;
      {
        auto run = train::assemble(job, mesh);
        train::Checkpointing saves(run, {});
        for (int64_t step = 0; step < kSteps; ++step) {
          whole.push_back(train::train_step(run, step).loss);
          if (step == 1)
            saves.after_step({.step = 2, .samples_seen = 12, .tokens_seen = 192}, {}, {});
        }
        saves.finish();
      }
      auto again = train::assemble(job, mesh);
      const auto counts =
          train::load_checkpoint(again, train::checkpoint_folder(job) / "step_00000002");
      EXPECT_EQ(counts.step, 2);
      const auto rest = losses_of(again, 2, kSteps);
      EXPECT_EQ(rest, std::vector<double>(whole.begin() + 2, whole.end()));
    });
  }
}

std::string refusal(const config::RunConfig& job) {
  try {
    config::check(job, {});
    train::assemble(job, mesh::DeviceMesh());
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

TEST(Fp8, MistakesAreNamed) {
  auto odd = fp8_job(Matmul::fp8_row);
  odd.precision.fp8_pad = false;
  odd.model.ffn_dim = 100;
  EXPECT_THAT(refusal(odd), ::testing::HasSubstr("multiples of 16"));
  EXPECT_THAT(refusal(odd), ::testing::HasSubstr("model.layers.0.mlp"));
  odd.precision.fp8_keep = {"*.mlp.*"};
  EXPECT_EQ(refusal(odd), "");
  auto nothing = fp8_job(Matmul::fp8_tensor);
  nothing.precision.fp8_keep = {"*.typo"};
  EXPECT_THAT(refusal(nothing), ::testing::HasSubstr("'*.typo' matches no linear layer"));
  auto run = train::assemble(fp8_job(Matmul::fp8_delayed), mesh::DeviceMesh());
  run.fp8.front().watch->amax[2] = INFINITY;
  EXPECT_THROW(train::finish_fp8_step(run, 0, /*skipped=*/false), UserError);
  auto margin = fp8_job(Matmul::fp8_delayed);
  margin.precision.fp8_margin = 32;
  auto small = train::assemble(margin, mesh::DeviceMesh());
  small.fp8.front().watch->amax = {1, 1, 1e36F};  // 57344 / 1e36 / 2^32 is no normal number
  EXPECT_THROW(train::finish_fp8_step(small, 0, /*skipped=*/false), UserError);
}

/// Makes a number of a weight infinite where this rank has it.
void spoil(train::Run& run, const std::string& weight) {
  const torch::NoGradGuard no_grad;
  for (const auto& part : run.parallel.parts()) {
    if (part.extent.name == weight) part.extent.values[0] = INFINITY;
  }
  run.parallel.values_changed();
}

/// No recipe takes a number without a scale for another one: the step does not count, and says which
/// operand of which layer it was, on every rank.
TEST(Fp8, NumbersWithoutAScaleAreNamed) {
  const std::string layer = "model.layers.1.mlp.up_proj";
  for (const mesh::MeshShape& shape :
       {mesh::MeshShape{}, {.dp_replicate = 2}, {.tp = 2}, {.pp = 2}}) {
    on_mesh({.shape = shape}, [&](const mesh::DeviceMesh& mesh) {
      for (const auto matmul : kRecipes) {
        auto run = train::assemble(over(fp8_job(matmul), shape), mesh);
        spoil(run, layer + ".weight");
        const auto result = train::train_step(run, 0);
        EXPECT_TRUE(result.skipped) << text_of(matmul);
        EXPECT_EQ(result.without_scale, "the weight of " + layer + " holds infinity")
            << text_of(matmul);
      }
    });
  }
}

/// What each layer's rounding lost, on any ranks, in the steps whose line is due.
TEST(Fp8, LossesOfEachLayerAreSeen) {
  for (const auto matmul : {Matmul::fp8_tensor, Matmul::fp8_delayed, Matmul::fp8_block}) {
    auto job = fp8_job(matmul);
    job.logging.every = 3;
    job.train.steps = 100;
    for (const mesh::MeshShape& shape :
         {mesh::MeshShape{}, {.dp_shard = 2}, {.tp = 2}, {.pp = 2}}) {
      on_mesh({.shape = shape}, [&](const mesh::DeviceMesh& mesh) {
        auto run = train::assemble(over(job, shape), mesh);
        const auto first = train::train_step(run, 0).fp8;
        EXPECT_TRUE(train::train_step(run, 1).fp8.empty());
        EXPECT_EQ(train::train_step(run, 2).fp8.size(), first.size());
        ASSERT_EQ(first.size(), run.model->layout().layers.size() * 7);
        for (size_t i = 0; i < first.size(); ++i) {
          EXPECT_EQ(first[i].path, run.fp8[i].path);
          EXPECT_EQ(first[i].layer, static_cast<int64_t>(i / 7));
          for (size_t j = 0; j < first[i].operands.size(); ++j) {
            const auto& own = first[i].operands[j];
            EXPECT_GT(own.amax, 0) << first[i].path << " " << j;
            EXPECT_GT(own.scale, 0);
            EXPECT_GE(own.underflow, 0);
            EXPECT_LE(own.lost(), 1);
            if (matmul == Matmul::fp8_delayed) continue;  // the first scale is 1
            EXPECT_LT(own.underflow, 0.1);
            EXPECT_EQ(own.overflow, 0);
            EXPECT_GT(own.scale * own.amax, 224);  // the least scale is that of the largest number
          }
        }
      });
    }
  }
}

TEST(Fp8, FirstAndLastBlockMayBeKept) {
  auto job = fp8_job(Matmul::fp8_tensor);
  job.model.num_layers = 3;
  const auto all = train::assemble(job, mesh::DeviceMesh());
  job.precision.fp8_keep = {"first_last"};
  const auto kept = train::assemble(job, mesh::DeviceMesh());
  const auto blocks = all.model->layout().layers;
  EXPECT_EQ(kept.fp8.size(), all.fp8.size() / blocks.size() * (blocks.size() - 2));
}

}  // namespace
}  // namespace tessera::parity
