// Optimizers that fit: states of 8 bits, and updates in the backward, in every placement.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tessera/base/error.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/checkpoint/tensors.h"
#include "tessera/kernels/cpu/memory.h"
#include "tessera/train/checkpointing.h"
#include "tessera/train/resume.h"
#include "tests/parity/fixture.h"
#include "tests/support/shared_folder.h"

namespace tessera::parity {
namespace {

struct Layout {
  const char* placement;
  mesh::MeshShape shape;
};

const std::vector<Layout> kLayouts = {{"replicate", {}},
                                      {"replicate", {.dp_replicate = 2}},
                                      {"replicate", {.dp_replicate = 3}},
                                      {"shard_optimizer", {.dp_shard = 3}},
                                      {"shard_gradients", {.dp_shard = 2}},
                                      {"full_shard", {.dp_shard = 2}},
                                      {"full_shard", {.dp_shard = 3}},
                                      {"full_shard", {.dp_replicate = 2, .dp_shard = 2}}};

config::RunConfig job_of(const Layout& layout, const std::string& preset = "micro") {
  auto job = recorded_job(/*seq_len=*/64, /*global_batch=*/12);
  job.model.preset = preset;
  job.optimizer.learning_rate = 3e-3;
  job.parallel.placement = *value_named<parallel::Placement>(layout.placement);
  job.parallel.num_ranks = layout.shape.num_ranks();
  job.parallel.dp_replicate = layout.shape.dp_replicate;
  job.parallel.dp_shard = layout.shape.dp_shard;
  return job;
}

struct Steps {
  std::vector<double> losses, norms;
  bool operator==(const Steps&) const = default;
};

Steps steps_of(train::Run& run, int64_t begin, int64_t end) {
  Steps steps;
  for (int64_t step = begin; step < end; ++step) {
    const auto result = train::train_step(run, step);
    steps.losses.push_back(result.loss);
    steps.norms.push_back(result.grad_norm);
  }
  return steps;
}

Steps steps_of(const config::RunConfig& job, const mesh::DeviceMesh& mesh, int64_t count) {
  config::check(job, {});
  auto run = train::assemble(job, mesh);
  return steps_of(run, 0, count);
}

class EachLayout : public ::testing::TestWithParam<size_t> {
 protected:
  static const Layout& layout() { return kLayouts[GetParam()]; }
};

// --- States of 8 bits.

class AdamW8bit : public EachLayout {};

config::RunConfig with_8_bits(config::RunConfig job) {
  job.optimizer.type = optim::OptimizerType::adamw8bit;
  return job;
}

constexpr int64_t kSteps = 12;

TEST_P(AdamW8bit, LearnsOnAnyRanksWhatOneLearns) {
  on_mesh({.shape = layout().shape}, [&](const mesh::DeviceMesh& mesh) {
    const auto steps = steps_of(with_8_bits(job_of(layout())), mesh, kSteps);
    const auto alone = steps_of(with_8_bits(job_of(kLayouts[0])), mesh::DeviceMesh(), kSteps);
    const auto full = steps_of(job_of(kLayouts[0]), mesh::DeviceMesh(), kSteps);
    for (size_t i = 0; i < steps.losses.size(); ++i) {
      // Sums in another order make a code its neighbour here and there.
      EXPECT_NEAR(steps.losses[i] / alone.losses[i], 1, 1e-4) << i;
      EXPECT_NEAR(steps.losses[i] / full.losses[i], 1, 2e-2) << i;
    }
    EXPECT_NE(alone.losses.back(), full.losses.back());
    EXPECT_LT(steps.losses.back(), steps.losses.front() - 0.3);
  });
}

/// Saves what `run` has as the checkpoint `name`.
std::filesystem::path save(train::Run& run, const SharedFolder& folder, const std::string& name,
                           const train::Counts& counts) {
  run.config.checkpoint.dir = folder.path() / name;
  run.config.checkpoint.resume = "none";
  train::Checkpointing saving(run, {});
  saving.after_step(counts, std::nullopt, {.save = true});
  saving.finish();
  return folder.path() / name / fmt::format("step_{:08}", counts.step);
}

void expect_same_tensors(const std::filesystem::path& a, const std::filesystem::path& b) {
  const checkpoint::Checkpoint first(a), second(b);
  int64_t num_codes = 0;
  ASSERT_EQ(first.index().tensors.size(), second.index().tensors.size());
  for (const auto& [name, tensor] : first.index().tensors) {
    EXPECT_TRUE(
        torch::equal(checkpoint::read_tensor(first, name), checkpoint::read_tensor(second, name)))
        << name;
    if (name.find("_codes/") == std::string::npos) continue;
    ++num_codes;
    EXPECT_EQ(tensor.info.dtype, checkpoint::DType::u8) << name;
  }
  EXPECT_EQ(num_codes, 2 * (2 * 5 + 1));  // q, o, gate, up and down of two blocks; the head
}

TEST_P(AdamW8bit, CodesAndScalesComeBackUnderAnotherLayout) {
  const SharedFolder folder;
  const train::Counts counts{.step = 3, .samples_seen = 36, .tokens_seen = 36 * 64};
  Steps rest;
  on_mesh({.shape = layout().shape}, [&](const mesh::DeviceMesh& mesh) {
    auto job = with_8_bits(job_of(layout()));
    job.checkpoint.every = 100;
    auto run = train::assemble(job, mesh);
    steps_of(run, 0, 3);
    const auto saved = save(run, folder, "first", counts);
    const auto losses = steps_of(run, 3, 5);
    job.checkpoint.resume = saved;
    auto again = train::assemble(job, mesh);
    EXPECT_EQ(train::resume(again).counts.step, 3);
    EXPECT_EQ(steps_of(again, 3, 5), losses);
  });
  const auto& other = kLayouts[(GetParam() + 3) % kLayouts.size()];
  on_mesh({.shape = other.shape}, [&](const mesh::DeviceMesh& mesh) {
    auto job = with_8_bits(job_of(other));
    job.checkpoint.every = 100;
    job.checkpoint.resume = folder.path() / "first";
    auto run = train::assemble(job, mesh);
    EXPECT_EQ(train::resume(run).counts.step, 3);
    const auto saved = save(run, folder, "second", counts);
    mesh.world().barrier();
    if (mesh.rank() == 0) expect_same_tensors(folder.path() / "first/step_00000003", saved);
  });
}

INSTANTIATE_TEST_SUITE_P(All, AdamW8bit, ::testing::Range<size_t>(0, kLayouts.size()));

TEST(AdamW8bitStates, AreNotThoseOfAdamW) {
  const SharedFolder folder;
  on_mesh({}, [&](const mesh::DeviceMesh& mesh) {
    auto job = job_of(kLayouts[0]);
    job.checkpoint.every = 100;
    auto run = train::assemble(job, mesh);
    steps_of(run, 0, 1);
    const auto saved = save(run, folder, "first", {.step = 1, .samples_seen = 12});
    job = with_8_bits(job);
    job.checkpoint.resume = saved;
    auto other = train::assemble(job, mesh);
    try {
      train::resume(other);
      FAIL();
    } catch (const UserError& error) {
      EXPECT_THAT(error.what(),
                  ::testing::HasSubstr("optimizer.type is adamw8bit, but adamw where "));
    }
  });
}

TEST(AdamW8bitStates, StochasticRoundingOfBf16WeightsGoesWithThem) {
  on_mesh({}, [&](const mesh::DeviceMesh& mesh) {
    auto job = with_8_bits(job_of(kLayouts[0]));
    job.precision.parameters = job.precision.compute = FloatType::bf16;
    job.optimizer.learning_rate = 3e-4;
    const auto nearest = steps_of(job, mesh, kSteps);
    job.precision.stochastic_rounding = true;
    const auto stochastic = steps_of(job, mesh, kSteps);
    EXPECT_NE(nearest, stochastic);
    EXPECT_EQ(steps_of(job, mesh, kSteps), stochastic);
    job.optimizer.type = optim::OptimizerType::adamw;
    const auto full = steps_of(job, mesh, kSteps);
    EXPECT_NEAR(stochastic.losses.back() / full.losses.back(), 1, 1e-2);
  });
}

TEST(AdamW8bitStates, TensorParallelismCutsBlocksOrIsRefused) {
  const mesh::MeshShape shape{.tp = 2};
  on_mesh({.shape = shape}, [&](const mesh::DeviceMesh& mesh) {
    auto job = with_8_bits(job_of({"replicate", shape}));
    job.parallel.tp = 2;
    try {
      train::assemble(job, mesh);
      FAIL();
    } catch (const UserError& error) {  // rows of 64, of which a rank has 32
      EXPECT_THAT(error.what(), ::testing::HasSubstr("parallel.tp: cuts"));
    }
    // Rows of 512, of which a rank has 256.
    job.model.dim = 512, job.model.ffn_dim = 512, job.model.num_heads = 8;
    job.model.num_kv_heads = 4, job.model.num_layers = 1;
    auto alone = job;
    alone.parallel = {};
    const auto steps = steps_of(job, mesh, 4), expected = steps_of(alone, mesh::DeviceMesh(), 4);
    for (size_t i = 0; i < steps.losses.size(); ++i) {
      EXPECT_NEAR(steps.losses[i] / expected.losses[i], 1, 1e-4) << i;
    }
  });
}

// --- Updates in the backward.

class InBackward : public EachLayout {};

void expect_the_same_steps(config::RunConfig job, const mesh::DeviceMesh& mesh, int64_t count) {
  job.optimizer.max_grad_norm = 0;
  const auto plain = steps_of(job, mesh, count);
  job.optimizer.in_backward = true;
  EXPECT_EQ(steps_of(job, mesh, count), plain);
}

TEST_P(InBackward, IsTheSameStepToTheBit) {
  on_mesh({.shape = layout().shape}, [&](const mesh::DeviceMesh& mesh) {
    using optim::OptimizerType;
    for (const auto type : {OptimizerType::adamw, OptimizerType::adamw8bit, OptimizerType::sgd}) {
      for (const auto compute : {FloatType::fp32, FloatType::bf16}) {
        for (const bool tied : {false, true}) {
          SCOPED_TRACE(fmt::format("{} {} {}", text_of(type), text_of(compute), tied));
          auto job = job_of(layout());
          job.optimizer.type = type;
          job.precision.compute = compute;
          job.model.tie_embeddings = tied;
          if (tied) job.memory.checkpointing = memory::CheckpointMode::selective;
          expect_the_same_steps(job, mesh, 5);
        }
      }
    }
  });
}

TEST_P(InBackward, FreesTheGradientsOfUnitsThatAreDone) {
  on_mesh({.shape = layout().shape}, [&](const mesh::DeviceMesh& mesh) {
    kernels::install_caching_allocator();
    auto job = job_of(layout(), "tiny");
    job.optimizer.max_grad_norm = 0;
    const auto run_two = [&] {
      auto run = train::assemble(job, mesh);
      steps_of(run, 0, 2);
      return std::pair(run.parallel.memory().peak_gradients, run.peak_tensors);
    };
    const auto [plain, plain_tensors] = run_two();
    job.optimizer.in_backward = true;
    const auto [freed, tensors] = run_two();
    // The largest units are embedding and head, each a seventh of the model.
    const double all =
        4.0 * static_cast<double>(models::num_parameters(models::model_preset("tiny")));
    const bool sharded = layout().shape.dp_shard > 1;
    EXPECT_LT(static_cast<double>(freed), (mesh.size() == 1 ? 0.25 : 0.45) * all);
    if (sharded) {
      EXPECT_LT(freed, plain);
    } else {
      EXPECT_NEAR(static_cast<double>(plain) / all, 1, 0.02);
      EXPECT_GE(static_cast<double>(plain_tensors - tensors),
                0.95 * static_cast<double>(plain - freed));
    }
    // Slices of gradients are few; the peak depends on when the first reductions of a backward end.
    EXPECT_LT(static_cast<double>(tensors),
              (sharded ? 1.1 : 1) * static_cast<double>(plain_tensors));
  });
}

INSTANTIATE_TEST_SUITE_P(All, InBackward, ::testing::Range<size_t>(0, kLayouts.size()));

TEST(InBackwardOnDividedModels, IsTheSameStepToTheBit) {
  const mesh::MeshShape shape{.dp_replicate = 1, .dp_shard = 2, .tp = 2};
  on_mesh({.shape = shape}, [&](const mesh::DeviceMesh& mesh) {
    for (const bool tied : {false, true}) {
      auto job = job_of({"full_shard", shape});
      job.parallel.tp = 2;
      job.model.tie_embeddings = tied;
      expect_the_same_steps(job, mesh, 4);
    }
  });
}

TEST(InBackwardOfOffloadedUnits, IsTheSameStepToTheBit) {
  const mesh::MeshShape shape{.dp_shard = 2};
  on_mesh({.shape = shape}, [&](const mesh::DeviceMesh& mesh) {
    auto job = job_of({"full_shard", shape});
    job.parallel.offload_optimizer = parallel::OffloadOptimizer::host;
    expect_the_same_steps(job, mesh, 4);
  });
}

TEST(InBackwardSettings, WhatItCannotDoIsRefusedInALine) {
  const auto refusal = [](auto change) -> std::string {
    auto job = job_of(kLayouts[0]);
    job.optimizer.in_backward = true;
    job.optimizer.max_grad_norm = 0;
    change(job);
    try {
      config::check(job, {});
    } catch (const UserError& error) {
      return error.what();
    }
    return "";
  };
  using ::testing::HasSubstr;
  EXPECT_EQ(refusal([](auto&) {}), "");
  EXPECT_THAT(refusal([](auto& job) { job.optimizer.max_grad_norm = 1; }),
              HasSubstr("set optimizer.max_grad_norm to 0"));
  EXPECT_THAT(refusal([](auto& job) { job.train.micro_batch = 4; }),
              HasSubstr("set train.micro_batch to 0"));
  EXPECT_THAT(refusal([](auto& job) { job.optimizer.type = optim::OptimizerType::muon; }),
              HasSubstr("optimizer.type other than muon"));
  EXPECT_THAT(refusal([](auto& job) { job.precision.compute = FloatType::fp16; }),
              HasSubstr("precision.compute other than fp16"));
  EXPECT_THAT(refusal([](auto& job) { job.train.nonfinite = train::Nonfinite::skip; }),
              HasSubstr("optimizer.in_backward false"));
}

}  // namespace
}  // namespace tessera::parity
