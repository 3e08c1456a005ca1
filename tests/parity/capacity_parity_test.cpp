// Experts that take so many tokens of a row, noise of what enters routers, and experts that are drawn: every layout beside one rank, runs
// that go on, validation, and what is sent and kept beside the estimates.
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "tessera/checkpoint/tensors.h"
#include "tessera/kernels/cpu/memory.h"
#include "tessera/predict/communication.h"
#include "tessera/train/balance.h"
#include "tessera/train/checkpointing.h"
#include "tessera/train/memory_and_traffic.h"
#include "tessera/train/resume.h"
#include "tests/parity/layout.h"
#include "tests/support/shared_folder.h"
#include "tests/support/train_from.h"

namespace tessera::parity {
namespace {

using nn::DropPolicy;

/// Four experts, of which a token takes two, in each of two blocks; rows of 32 tokens.
config::RunConfig job_of(const config::MoeSection& moe) {
  auto job = recorded_job(32, 12);
  job.model.path = "tests/fixtures/mixtral_micro";
  job.model.init = models::Init::pretrained;
  job.optimizer.max_grad_norm = 0;
  job.moe = moe;
  return job;
}

/// With room for 13, 10, 8 and 13 of a row's 16 choices of an expert on average.
const config::MoeSection kGates[] = {
    {.capacity_factor = 0.8, .min_capacity = 1},
    {.aux_loss = train::AuxLoss::sequence,
     .aux_coefficient = 0.1,
     .capacity_factor = 0.6,
     .min_capacity = 1,
     .drop_policy = DropPolicy::position,
     .input_jitter = 0.2},
    {.aux_loss = train::AuxLoss::batch,
     .aux_coefficient = 0.1,
     .capacity_factor = 0.3,
     .min_capacity = 8,
     .drop_policy = DropPolicy::random,
     .input_jitter = 0.1},
    {.z_coefficient = 0.02,
     .selection_bias_rate = 0.01,
     .capacity_factor = 0.8,
     .drop_policy = DropPolicy::choice},
    {.aux_loss = train::AuxLoss::transformers, .aux_coefficient = 0.1, .input_jitter = 0.3},
    {.aux_loss = train::AuxLoss::batch,
     .aux_coefficient = 0.1,
     .capacity_factor = 0.6,
     .min_capacity = 1,
     .drop_policy = DropPolicy::choice,
     .sampling = nn::ExpertSampling::all},
    {.z_coefficient = 0.02, .input_jitter = 0.2, .sampling = nn::ExpertSampling::but_first}};

/// The largest difference of what this rank holds from the same of one rank, against the largest number there.
void expect_same_weights(train::Run& run, train::Run& one, int64_t step) {
  std::map<std::string, torch::Tensor> whole;
  for (auto& part : train::held_state(one)) whole[part.extent.name] = part.values;
  for (const auto& part : train::held_state(run)) {
    const auto& name = part.extent.name;
    if (checkpoint::is_optimizer_state(name)) continue;
    part.extent.stripe.for_each_stretch(
        part.extent.begin, part.extent.length, [&](int64_t position, int64_t k, int64_t n) {
          const auto difference = part.values.narrow(0, k - part.extent.begin, n) -
                                  whole.at(name).narrow(0, position, n);
          const double size = std::max(1e-3, whole.at(name).abs().max().item<double>());
          EXPECT_LT(difference.abs().max().item<double>(), 2e-5 * size) << step << " " << name;
        });
  }
}

class CapacityParityTest : public ::testing::TestWithParam<Layout> {};

TEST_P(CapacityParityTest, EqualsOneRank) {
  on_mesh({.shape = GetParam().shape}, [](const mesh::DeviceMesh& mesh) {
    for (const auto& moe : kGates) {
      SCOPED_TRACE(fmt::format("{} {} {}", moe.capacity_factor.value_or(0),
                               text_of(moe.drop_policy), moe.input_jitter));
      auto job = job_of(moe);
      job.optimizer.type = optim::OptimizerType::sgd;  // weights say what gradients were
      job.optimizer.learning_rate = 0.05;
      auto run = train::assemble(with_layout(job, GetParam()), mesh);
      auto one = train::assemble(job, mesh::DeviceMesh());
      for (int64_t step = 0; step < 3; ++step) {
        const auto found = train::train_step(run, step), expected = train::train_step(one, step);
        EXPECT_NEAR(found.loss / expected.loss, 1, 2e-5) << step;
        EXPECT_NEAR(found.grad_norm / expected.grad_norm, 1, 2e-5) << step;
        ASSERT_EQ(found.experts.size(), expected.experts.size());
        for (size_t i = 0; i < found.experts.size(); ++i) {
          EXPECT_EQ(found.experts[i].tokens, expected.experts[i].tokens) << step;
          EXPECT_EQ(found.experts[i].dropped, expected.experts[i].dropped) << step;
          EXPECT_EQ(found.experts[i].dropped.has_value(), moe.capacity_factor.has_value());
          EXPECT_GT(found.experts[i].dropped.value_or(1), 0.01) << step;
        }
        expect_same_weights(run, one, step);
      }
    }
  });
}

std::vector<Layout> layouts() {
  using L = Layout;
  const mesh::MeshShape one, tp{.tp = 2}, pp{.pp = 2};
  return {L{one, "replicate", "none", 1, 4},
          L{one, "replicate", "full", 1, 3},
          L{one, "replicate", "selective", 1, 1},
          L{{.dp_replicate = 2}, "replicate"},
          L{{.dp_shard = 3}, "full_shard", "none", 1, 2},
          L{{.dp_shard = 2}, "full_shard", "selective", 1, 2},
          L{tp, "replicate"},
          L{tp, "replicate", "full", 1, 6, "", {}, false},
          L{pp, "replicate", "none", 1, 4},
          L{pp, "replicate", "full", 1, 2, "ZB-H1"},
          L{{.dp_shard = 2, .ep = 2}},
          L{{.dp_replicate = 2, .ep = 2}, "replicate", "full", 1, 3},
          L{{.dp_shard = 4, .ep = 4}, "shard_gradients", "selective", 1, 1},
          L{{.dp_shard = 2, .ep = 2, .tp = 2}, "full_shard", "none", 1, 2},
          L{{.dp_shard = 2, .ep = 4, .tp = 2, .etp = 1}, "full_shard", "full", 1, 3},
          L{{.pp = 2, .dp_shard = 2, .ep = 2}, "full_shard", "full", 1, 2, "ZB-H1"}};
}

INSTANTIATE_TEST_SUITE_P(All, CapacityParityTest, ::testing::ValuesIn(layouts()));

// What is drawn is of the step, so a run that goes on draws what it would have drawn.
TEST(Capacity, ARunGoesOnAsIfItHadNotBeenCut) {
  const SharedFolder folder;
  auto job = job_of(kGates[2]);
  job.moe.sampling = nn::ExpertSampling::all;
  job.train.run_dir = folder.path();
  job.train.steps = 6;
  for (const auto& layout : {Layout{{}, "replicate"}, Layout{{.dp_shard = 2, .ep = 2}}}) {
    on_mesh({.shape = layout.shape}, [&](const mesh::DeviceMesh& mesh) {
      auto own = with_layout(job, layout);
      own.train.run_dir = folder.path() / std::to_string(mesh.shape().num_ranks());
      auto whole = train::assemble(own, mesh);
      const auto losses = train_from(whole, {}, 6);
      auto first = own;
      first.train.steps = 3;
      auto half = train::assemble(first, mesh);
      train::Checkpointing saving(half, {});
      train_from(half, {}, 3, &saving);
      own.checkpoint.resume = "auto";
      auto second = train::assemble(own, mesh);
      const auto counts = train::resume(second).counts;
      EXPECT_EQ(counts.step, 3);
      EXPECT_EQ(train_from(second, counts, 6),
                std::vector<double>(losses.begin() + 3, losses.end()));
    });
  }
}

double validated(config::RunConfig job, const Layout& layout, const mesh::DeviceMesh& mesh) {
  job.data.validation_fraction = 0.1;
  auto run = train::assemble(with_layout(std::move(job), layout), mesh);
  return train::validate(run)->loss;
}

// Training's capacity and noise are not validation's, which drops nothing unless it is asked to.
TEST(Capacity, ValidationHasItsOwn) {
  for (const auto& layout :
       {Layout{{.dp_shard = 2, .ep = 2}}, Layout{{.pp = 2}, "replicate", "none", 1, 2}}) {
    on_mesh({.shape = layout.shape}, [&](const mesh::DeviceMesh& mesh) {
      const mesh::DeviceMesh alone;
      const double plain = validated(job_of({}), {{}, "replicate"}, alone);
      EXPECT_NEAR(validated(job_of(kGates[2]), layout, mesh) / plain, 1, 1e-6);
      for (const auto policy : {DropPolicy::probs, DropPolicy::random}) {
        const auto job = job_of({.capacity_factor = 0.5,
                                 .eval_capacity_factor = 0.6,
                                 .min_capacity = 0,
                                 .drop_policy = policy,
                                 .input_jitter = 0.3});
        const double own = validated(job, {{}, "replicate"}, alone);
        EXPECT_GT(std::abs(own / plain - 1), 2e-5);
        EXPECT_NEAR(validated(job, layout, mesh) / own, 1, 1e-6);
      }
    });
  }
}

/// Eight experts, of which a token takes two.
config::RunConfig dropping_job(const char* model, int64_t seq_len) {
  auto job = recorded_job(seq_len, /*global_batch=*/8);
  job.model.path = model;
  job.model.init_std = 0.2;
  job.moe.capacity_factor = 0.5;
  return job;
}

// Of the rows that an estimate counts those that are kept are sent.
TEST(Capacity, SendsWhatIsKept) {
  for (const auto& layout : {Layout{{.dp_shard = 2, .ep = 2}},
                             Layout{{.dp_replicate = 2, .ep = 2}, "replicate", "full", 1, 2}}) {
    on_mesh({.shape = layout.shape}, [&](const mesh::DeviceMesh& mesh) {
      const auto job = with_layout(dropping_job("tests/fixtures/experts_micro", 32), layout);
      auto run = train::assemble(job, mesh);
      const auto result = train::train_step(run, 0);
      double kept = 0;
      for (const auto& layer : result.experts) {
        kept += (1 - *layer.dropped) / static_cast<double>(result.experts.size());
      }
      EXPECT_GT(kept, 0.3);
      EXPECT_LE(kept, 0.5);
      const auto expected = predict::communication(job, run.rank_plan()).ep();
      EXPECT_NEAR(run.traffic.ep().sent / (kept * expected.sent), 1, 1e-3);
      EXPECT_EQ(run.traffic.ep().all_gather, expected.all_gather);
    });
  }
}

// Estimates are of runs that drop nothing: an upper bound.
TEST(Capacity, KeepsNoMoreThanIsEstimated) {
  for (const auto& layout : {Layout{{}, "replicate"}, Layout{{}, "replicate", "selective"},
                             Layout{{.dp_shard = 2, .ep = 2}}}) {
    on_mesh({.shape = layout.shape}, [&](const mesh::DeviceMesh& mesh) {
      kernels::install_caching_allocator();
      auto run = train::assemble(
          with_layout(dropping_job("tests/fixtures/experts_small", 256), layout), mesh);
      for (int64_t step = 0; step < 2; ++step) train::train_step(run, step);
      for (const auto& part : train::memory_account(run)) {
        if (part.name != "activations" && part.name != "at once") continue;
        EXPECT_LE(part.measured, part.predicted) << part.name;
      }
    });
  }
}

}  // namespace
}  // namespace tessera::parity
