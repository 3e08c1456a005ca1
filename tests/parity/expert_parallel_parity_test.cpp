// Experts shared out over ranks, with every placement of the data axes, tensor and pipeline
// parallelism: what one rank computes.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tessera/checkpoint/folder.h"
#include "tessera/predict/communication.h"
#include "tessera/train/checkpointing.h"
#include "tessera/train/memory_and_traffic.h"
#include "tests/parity/layout.h"
#include "tests/support/shared_folder.h"
#include "tests/support/train_from.h"

namespace tessera::parity {
namespace {

/// Eight experts, of which a token takes two, in each of two blocks.
config::RunConfig experts_job() {
  auto job = recorded_job(/*seq_len=*/8, /*global_batch=*/16);
  job.model.path = "tests/fixtures/experts_micro";
  job.model.init_std = 0.2;
  return job;
}

/// Copies of all values that this rank holds of the model.
std::map<std::string, torch::Tensor> held_values(train::Run& run) {
  std::map<std::string, torch::Tensor> values;
  for (const auto& part : train::held_state(run)) {
    if (checkpoint::is_optimizer_state(part.extent.name)) continue;
    values[fmt::format("{} {}", part.extent.name, part.extent.begin)] = part.values.clone();
  }
  return values;
}

std::map<std::string, torch::Tensor> whole_values(const train::Run& one) {
  std::map<std::string, torch::Tensor> values;
  for (const auto& item : one.model->named_parameters()) {
    values[item.key()] = item.value().detach().reshape({-1}).clone();
  }
  return values;
}

bool is_expert(const std::string& name) { return name.find(".experts.") != std::string::npos; }

/// One step of plain gradient descent by both: the weights' change is the gradient. Returns the names
/// of experts' parameters here whose gradient is zero.
std::set<std::string> expect_gradients_of_one_rank(train::Run& run, train::Run& one) {
  const auto before = held_values(run), whole_before = whole_values(one);
  const auto result = train::train_step(run, 0), expected = train::train_step(one, 0);
  EXPECT_NEAR(result.loss / expected.loss, 1, 2e-5);
  EXPECT_NEAR(result.grad_norm / expected.grad_norm, 1, 2e-5);
  const auto whole_after = whole_values(one);
  double largest_of_all = 0;
  for (const auto& [name, after] : whole_after) {
    const auto gradient = (after - whole_before.at(name)).abs().max();
    largest_of_all = std::max(largest_of_all, gradient.item<double>());
  }
  std::set<std::string> idle;
  for (const auto& part : train::held_state(run)) {
    const auto& name = part.extent.name;
    if (checkpoint::is_optimizer_state(name)) continue;
    const auto gradient = whole_after.at(name) - whole_before.at(name);
    const double largest = gradient.abs().max().item<double>();
    if (largest == 0) idle.insert(name);
    const auto own =
        part.values - before.at(fmt::format("{} {}", part.extent.name, part.extent.begin));
    part.extent.stripe.for_each_stretch(
        part.extent.begin, part.extent.length, [&](int64_t position, int64_t k, int64_t n) {
          const auto difference =
              own.narrow(0, k - part.extent.begin, n) - gradient.narrow(0, position, n);
          // The weights themselves are rounded to 24 bits; some gradients are sums that cancel.
          const double rounding =
              5e-7 * whole_after.at(name).abs().max().item<double>() + 1e-6 * largest_of_all;
          EXPECT_LE(difference.abs().max().item<double>(), 2e-5 * largest + rounding) << name;
        });
  }
  return idle;
}

config::RunConfig by_gradient_descent(config::RunConfig job) {
  job.optimizer.type = optim::OptimizerType::sgd;
  job.optimizer.learning_rate = 1;
  job.optimizer.weight_decay = 0;
  job.optimizer.decay_norms_and_biases = false;
  job.optimizer.max_grad_norm = 0;
  return job;
}

/// The layouts of one mesh, whose ranks are started once.
std::vector<std::vector<Layout>> layouts() {
  using L = Layout;
  const mesh::MeshShape two{.dp_shard = 2, .ep = 2}, four{.dp_shard = 4, .ep = 2},
      all_four{.dp_shard = 4, .ep = 4}, copies{.dp_replicate = 2, .ep = 2},
      more_copies{.dp_replicate = 4, .ep = 2}, hybrid{.dp_replicate = 2, .dp_shard = 2, .ep = 2},
      with_tp{.dp_shard = 2, .ep = 2, .tp = 2}, copies_with_tp{.dp_replicate = 2, .ep = 2, .tp = 2},
      with_pp{.pp = 2, .dp_shard = 2, .ep = 2}, copies_with_pp{.pp = 2, .dp_replicate = 2, .ep = 2},
      all{.pp = 2, .dp_shard = 2, .ep = 2, .tp = 2},
      wide{.dp_replicate = 2, .dp_shard = 4, .ep = 2}, wider{.dp_shard = 4, .ep = 4, .tp = 2},
      tokens{.tp = 2, .etp = 1}, tp_lends{.ep = 2, .tp = 2, .etp = 1},
      sharded_over_tp{.dp_shard = 2, .tp = 2, .etp = 1},
      both_lend{.dp_shard = 2, .ep = 4, .tp = 2, .etp = 1},
      both_lend_copies{.dp_replicate = 2, .ep = 4, .tp = 2, .etp = 1},
      tp_lends_half{.ep = 2, .tp = 4, .etp = 1}, halves{.dp_shard = 2, .ep = 2, .tp = 4, .etp = 2},
      hybrid_lends{.dp_replicate = 2, .dp_shard = 2, .ep = 4, .tp = 2, .etp = 1},
      pp_lends{.pp = 2, .dp_shard = 2, .ep = 4, .tp = 2, .etp = 1};
  const auto overlapped = [](int64_t degree, L layout) {
    layout.overlap_degree = degree;
    return layout;
  };
  return {
      {L{two, "shard_optimizer"}, L{two, "shard_gradients", "full", 1, 2},
       overlapped(2, {two, "full_shard"}),
       overlapped(3, {two, "shard_gradients", "selective", 1, 2}),
       L{two, "full_shard", "selective"}, L{two, "full_shard", "full", 2, 4},
       L{two, "shard_optimizer", "selective", 2, 2}},
      {L{four, "shard_optimizer", "full"}, L{four, "shard_gradients", "none", 1, 2},
       L{four, "full_shard", "selective", 1, 2}},
      {L{all_four, "shard_gradients", "selective"}, L{all_four, "full_shard", "none", 1, 1},
       L{all_four, "full_shard", "full"}, overlapped(2, {all_four, "full_shard", "full", 1, 1}),
       overlapped(5, {all_four, "shard_optimizer", "none", 1, 1})},
      {L{copies, "replicate"}, L{copies, "replicate", "full", 2, 2},
       L{copies, "replicate", "selective", 1, 4}},
      {L{more_copies, "replicate", "none", 1, 2}, L{more_copies, "replicate", "full"}},
      {L{hybrid, "full_shard", "none", 1, 2}, L{hybrid, "shard_gradients", "selective"},
       L{hybrid, "shard_optimizer", "full"}},
      {L{with_tp, "full_shard", "selective", 1, 2},
       L{with_tp, "full_shard", "full", 1, 0, "", {}, false}},
      {L{copies_with_tp, "replicate"}, L{copies_with_tp, "replicate", "none", 1, 4, "", {}, false}},
      {L{with_pp, "full_shard", "none", 1, 0, "ZB-H1"}, L{with_pp, "full_shard", "full"},
       L{with_pp, "shard_optimizer", "selective", 1, 2, "GPipe"},
       L{with_pp, "shard_gradients", "none", 1, 0, "ZBVZeroBubble", {0, 1, 1, 0}},
       L{with_pp, "full_shard", "selective", 1, 0, "Interleaved1F1B", {0, 1, 1, 0}}},
      {L{copies_with_pp, "replicate", "none", 1, 0, "ZB-H1"},
       L{copies_with_pp, "replicate", "full", 1, 0, "DualPipeV", {0, 1, 1, 0}}},
      {L{all, "full_shard", "none", 1, 0, "ZB-H1"}, L{all, "full_shard", "selective", 1, 2},
       overlapped(2, {all, "full_shard", "none", 1, 0, "ZB-H1"})},
      {L{wide, "full_shard", "none", 1, 1}, L{wide, "full_shard", "full"}},
      {L{wider, "full_shard", "selective"}},
      {L{tokens, "replicate"}, L{tokens, "full_shard", "full", 1, 1},
       L{tokens, "shard_optimizer", "selective", 1, 4, "", {}, false}},
      {L{tp_lends, "replicate", "selective", 1, 2},
       L{tp_lends, "full_shard", "none", 1, 1, "", {}, false}},
      {L{sharded_over_tp, "full_shard", "selective"}, L{sharded_over_tp, "shard_gradients", "full"},
       L{sharded_over_tp, "shard_optimizer", "none", 1, 2, "", {}, false}},
      {L{both_lend, "full_shard", "full", 1, 2}, L{both_lend, "shard_gradients"},
       L{both_lend, "shard_optimizer", "selective", 1, 4, "", {}, false}},
      {L{both_lend_copies, "replicate"}, L{both_lend_copies, "replicate", "full", 1, 2}},
      {L{tp_lends_half, "full_shard", "selective"}, L{tp_lends_half, "replicate", "none", 1, 4},
       overlapped(2, {tp_lends_half, "full_shard"})},
      {L{halves, "full_shard", "none", 1, 2}, L{halves, "shard_gradients", "full"}},
      {L{hybrid_lends, "full_shard", "selective"}, L{hybrid_lends, "shard_optimizer"}},
      {L{pp_lends, "full_shard", "none", 1, 0, "ZB-H1"},
       L{pp_lends, "shard_gradients", "selective", 1, 2},
       L{pp_lends, "full_shard", "full", 1, 0, "DualPipeV", {0, 1, 1, 0}}}};
}

class ExpertParallelTest : public ::testing::TestWithParam<std::vector<Layout>> {};

TEST_P(ExpertParallelTest, LossNormAndEveryGradientAreThoseOfOneRank) {
  const auto deadline = std::chrono::seconds(60) * static_cast<int64_t>(GetParam().size());
  on_mesh({.shape = GetParam().front().shape, .deadline = deadline},
          [&](const mesh::DeviceMesh& mesh) {
            for (const auto& layout : GetParam()) {
              SCOPED_TRACE(::testing::PrintToString(layout));
              const auto job = by_gradient_descent(experts_job());
              auto run = train::assemble(with_layout(job, layout), mesh);
              auto one = train::assemble(job, mesh::DeviceMesh());
              expect_gradients_of_one_rank(run, one);
              for (const auto& part : train::held_state(run)) {  // experts 8 / ep, and no others
                if (!is_expert(part.extent.name)) continue;
                const auto digits = part.extent.name.substr(part.extent.name.find(".experts.") + 9);
                const int here = 8 / mesh.shape().ep;
                EXPECT_EQ(std::stoi(digits) / here, mesh.axis("ep").rank()) << part.extent.name;
              }
            }
          });
}

INSTANTIATE_TEST_SUITE_P(All, ExpertParallelTest, ::testing::ValuesIn(layouts()));

// All tokens are alike, so that all take the same two experts: the others have none on any rank, and
// no row goes to most ranks.
TEST(ExpertParallel, ExpertsWithoutTokensHaveGradientsOfZero) {
  const SharedFolder folder;
  const auto text = folder.path() / "alike.txt";
  // The ranks, which the parent starts, find it.
  if (!std::filesystem::exists(text)) std::ofstream(text) << std::string(4096, 'a');
  for (const auto& layout :
       {Layout{{.dp_shard = 4, .ep = 4}}, Layout{{.dp_replicate = 4, .ep = 4}, "replicate", "full"},
        Layout{{.dp_shard = 2, .ep = 2, .tp = 2}, "shard_gradients", "selective"},
        Layout{{.dp_shard = 2, .ep = 4, .tp = 2, .etp = 1}, "full_shard", "full"}}) {
    SCOPED_TRACE(::testing::PrintToString(layout));
    on_mesh({.shape = layout.shape}, [&](const mesh::DeviceMesh& mesh) {
      auto job = by_gradient_descent(experts_job());
      job.data.train = {text.string()};
      job.data.format = data::DataFormat::text;
      auto run = train::assemble(with_layout(job, layout), mesh);
      auto one = train::assemble(job, mesh::DeviceMesh());
      const auto idle = expect_gradients_of_one_rank(run, one);
      int64_t used = 0, all = 0;
      for (const auto& item : one.model->named_parameters()) {
        if (!is_expert(item.key()) || !item.key().ends_with("w1.weight")) continue;
        const auto parts = train::held_state(run);
        const bool here = std::ranges::any_of(
            parts, [&](const auto& part) { return part.extent.name == item.key(); });
        if (!here) continue;
        ++all;
        if (!idle.contains(item.key())) ++used;
      }
      EXPECT_LT(used, all);
      // With momentum and weight decay they are trained on as the others are: every rank steps.
      EXPECT_TRUE(std::isfinite(train::train_step(run, 1).loss));
    });
  }
}

TEST(ExpertParallel, Bf16StaysNear) {
  for (const auto& layout :
       {Layout{{.dp_shard = 2, .ep = 2}}, Layout{{.dp_replicate = 2, .ep = 2}, "replicate"},
        Layout{{.ep = 2, .tp = 2, .etp = 1}, "replicate"}}) {
    on_mesh({.shape = layout.shape}, [&](const mesh::DeviceMesh& mesh) {
      for (const bool autocast : {false, true}) {
        auto job = with_layout(experts_job(), layout);
        job.precision.compute = FloatType::bf16;
        job.precision.autocast = autocast;
        auto run = train::assemble(job, mesh);
        auto one = train::assemble(experts_job(), mesh::DeviceMesh());
        for (int64_t step = 0; step < 5; ++step) {
          const double expected = train::train_step(one, step).loss;
          EXPECT_NEAR(train::train_step(run, step).loss / expected, 1, 7e-3)
              << "autocast " << autocast << ", step " << step;
        }
      }
    });
  }
}

// Experts are multiplied together and not called one by one, so none of their matrices is a unit.
TEST(ExpertParallel, UnitsBySizeEndAtExperts) {
  for (const auto* placement : {"full_shard", "shard_gradients"}) {
    const Layout layout{{.dp_shard = 2}, placement};
    on_mesh({.shape = layout.shape}, [&](const mesh::DeviceMesh& mesh) {
      auto job = with_layout(experts_job(), layout);
      job.parallel.units = parallel::Units::size;
      job.parallel.min_num_params = 1000;
      auto run = train::assemble(job, mesh);
      auto one = train::assemble(experts_job(), mesh::DeviceMesh());
      for (int64_t step = 0; step < 3; ++step) {
        const auto expected = train::train_step(one, step), found = train::train_step(run, step);
        EXPECT_NEAR(found.loss / expected.loss, 1, 2e-5) << step;
      }
    });
  }
}

TEST(ExpertParallel, AdaptersBesideExpertsAndInThem) {
  const std::vector<std::pair<models::AdapterType, std::vector<std::string>>> kinds{
      {models::AdapterType::lora, {"q_proj", "v_proj"}},
      {models::AdapterType::lora, {"w1", "w2", "o_proj"}},
      {models::AdapterType::dora, {"w1", "w2"}}};
  for (const auto& layout :
       {Layout{{.dp_shard = 2, .ep = 2}}, Layout{{.dp_replicate = 2, .ep = 2}, "replicate", "full"},
        Layout{{.dp_shard = 2, .ep = 2, .tp = 2}, "full_shard", "selective"},
        Layout{{.dp_shard = 2, .ep = 4, .tp = 2, .etp = 1}, "full_shard", "selective"},
        Layout{{.ep = 2, .tp = 4, .etp = 2}, "replicate", "full"},
        Layout{{.pp = 2, .dp_shard = 2, .ep = 2}, "full_shard", "none", 1, 0, "ZB-H1"}}) {
    SCOPED_TRACE(::testing::PrintToString(layout));
    on_mesh({.shape = layout.shape}, [&](const mesh::DeviceMesh& mesh) {
      for (const auto& [type, targets] : kinds) {
        auto job = experts_job();
        job.adapter.type = type;
        job.adapter.rank = 4;
        job.adapter.targets = targets;
        auto run = train::assemble(with_layout(job, layout), mesh);
        auto one = train::assemble(job, mesh::DeviceMesh());
        for (int64_t step = 0; step < 5; ++step) {
          const auto expected = train::train_step(one, step), found = train::train_step(run, step);
          EXPECT_NEAR(found.loss / expected.loss, 1, 2e-5) << targets.front() << " " << step;
          EXPECT_NEAR(found.grad_norm / expected.grad_norm, 1, 1e-4) << step;
        }
      }
    });
  }
}

TEST(ExpertParallel, MuonUpdatesExpertsAsOneRankDoes) {
  for (const auto& layout :
       {Layout{{.dp_shard = 4, .ep = 2}}, Layout{{.dp_shard = 2, .ep = 2, .tp = 2}},
        Layout{{.dp_shard = 2, .ep = 2, .tp = 2, .etp = 1}},
        Layout{{.ep = 2, .tp = 4, .etp = 2}, "shard_gradients"}}) {
    on_mesh({.shape = layout.shape}, [&](const mesh::DeviceMesh& mesh) {
      auto job = experts_job();
      job.optimizer.type = optim::OptimizerType::muon;
      auto run = train::assemble(with_layout(job, layout), mesh);
      auto one = train::assemble(job, mesh::DeviceMesh());
      for (int64_t step = 0; step < 5; ++step) {
        const double expected = train::train_step(one, step).loss;
        EXPECT_NEAR(train::train_step(run, step).loss / expected, 1, 2e-3) << step;
      }
    });
  }
}

void expect_traffic(const predict::Traffic& found, const predict::Traffic& expected,
                    const char* axis) {
  constexpr double kFewNumbers = 256;  // losses, counts of tokens, norms
  EXPECT_NEAR(found.all_reduce, expected.all_reduce, kFewNumbers) << axis;
  EXPECT_NEAR(found.all_gather, expected.all_gather, kFewNumbers) << axis;
  EXPECT_NEAR(found.reduce_scatter, expected.reduce_scatter, kFewNumbers) << axis;
  EXPECT_NEAR(found.sent, expected.sent, kFewNumbers) << axis;  // whole bytes of means
}

class ExpertTrafficTest : public ::testing::TestWithParam<Layout> {};

TEST_P(ExpertTrafficTest, IsWhatIsEstimated) {
  const auto job = with_layout(experts_job(), GetParam());
  on_mesh({.shape = GetParam().shape}, [&](const mesh::DeviceMesh& mesh) {
    auto run = train::assemble(job, mesh);
    train::train_step(run, 0);
    train::train_step(run, 1);
    const auto expected = predict::communication(job, run.rank_plan());
    expect_traffic(run.traffic.dp(), expected.dp(), "dp");
    expect_traffic(run.traffic.ep(), expected.ep(), "ep");
    expect_traffic(run.traffic.tp(), expected.tp(), "tp");
    expect_traffic(run.traffic.pp(), expected.pp(), "pp");
    EXPECT_EQ(expected.ep().sent > 0, GetParam().shape.ep > 1);
  });
}

INSTANTIATE_TEST_SUITE_P(
    All, ExpertTrafficTest,
    ::testing::Values(Layout{{.dp_shard = 2, .ep = 2}},
                      Layout{{.dp_shard = 4, .ep = 2}, "full_shard", "full", 1, 2},
                      Layout{{.dp_shard = 4, .ep = 2}, "shard_optimizer", "full", 2},
                      Layout{{.dp_shard = 4, .ep = 4}, "shard_gradients", "selective", 1, 2},
                      Layout{{.dp_replicate = 2, .ep = 2}, "replicate"},
                      Layout{{.dp_replicate = 4, .ep = 2}, "replicate", "selective", 1, 2},
                      Layout{{.dp_replicate = 2, .dp_shard = 2, .ep = 2}, "full_shard"},
                      Layout{{.dp_replicate = 2, .dp_shard = 4, .ep = 2}, "full_shard"},
                      Layout{{.dp_shard = 2, .ep = 2, .tp = 2}, "full_shard", "full"},
                      Layout{{.dp_shard = 2, .tp = 2, .etp = 1}, "full_shard", "full"},
                      Layout{{.dp_shard = 2, .ep = 4, .tp = 2, .etp = 1}, "full_shard", "full"},
                      Layout{{.tp = 2}, "replicate"},
                      Layout{{.dp_shard = 2, .tp = 2}, "full_shard", "selective"},
                      Layout{{.tp = 2, .etp = 1}, "replicate"},
                      Layout{{.ep = 2, .tp = 4, .etp = 2}, "shard_gradients", "selective", 1, 2},
                      Layout{{.dp_replicate = 2, .ep = 4, .tp = 2, .etp = 1}, "replicate"},
                      Layout{
                          {.pp = 2, .dp_shard = 2, .ep = 2}, "full_shard", "none", 1, 0, "ZB-H1"}));

// A checkpoint that one layout wrote is read by every other, and the run goes on as if it had not
// been cut.
TEST(ExpertParallel, ARunGoesOnUnderAnyOtherLayout) {
  const Layout list[] = {{{.dp_shard = 1}},
                         {{.dp_shard = 2, .ep = 2}},
                         {{.dp_shard = 4, .ep = 4}, "shard_gradients"},
                         {{.dp_replicate = 4, .ep = 2}, "replicate"},
                         {{.dp_shard = 2, .ep = 2, .tp = 2}},
                         {{.dp_shard = 2, .ep = 4, .tp = 2, .etp = 1}},
                         {{.dp_shard = 2, .tp = 2, .etp = 1}, "shard_optimizer"},
                         {{.pp = 2, .dp_shard = 2, .ep = 2}}};
  constexpr int64_t kCut = 2, kSteps = 4;
  for (size_t from = 0; from < std::size(list); ++from) {
    SCOPED_TRACE(::testing::PrintToString(list[from]));
    const SharedFolder folder;
    const auto job_of = [&](const Layout& layout) {
      auto job = with_layout(experts_job(), layout);
      job.train.run_dir = folder.path();
      job.train.steps = kSteps;
      job.checkpoint.every = kCut;
      return job;
    };
    on_mesh({.shape = list[from].shape}, [&](const mesh::DeviceMesh& mesh) {
      auto job = job_of(list[from]);
      auto whole = train::assemble(job, mesh);
      train::Checkpointing saving(whole, {});
      const auto losses = train_from(whole, {}, kSteps, &saving);
      if (mesh.rank() == 0)
        checkpoint::remove_checkpoint(folder.path() / "checkpoints/step_00000004");
      mesh.world().barrier();
      job.checkpoint.resume = "auto";
      auto resumed = train::assemble(job, mesh);
      const auto counts = train::resume(resumed).counts;
      EXPECT_EQ(counts.step, kCut);
      EXPECT_EQ(train_from(resumed, counts, kSteps),
                std::vector<double>(losses.begin() + kCut, losses.end()));
    });
    const auto& other = list[(from + 1) % std::size(list)];
    on_mesh({.shape = other.shape}, [&](const mesh::DeviceMesh& mesh) {
      auto job = job_of(other);
      auto whole = train::assemble(job, mesh);
      const auto losses = train_from(whole, {}, kSteps);
      job.checkpoint.resume = "auto";
      auto resumed = train::assemble(job, mesh);
      const auto again = train_from(resumed, train::resume(resumed).counts, kSteps);
      ASSERT_EQ(again.size(), static_cast<size_t>(kSteps - kCut));
      for (size_t i = 0; i < again.size(); ++i) {
        EXPECT_NEAR(again[i] / losses[kCut + i], 1, 2e-5) << i;
      }
    });
  }
}

}  // namespace
}  // namespace tessera::parity
