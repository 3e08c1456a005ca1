// Models divided over ranks, with every placement of the data axes: the losses and gradient
// norms that PyTorch recorded on one rank.
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>

#include "tessera/base/error.h"
#include "tessera/optim/muon.h"
#include "tessera/predict/communication.h"
#include "tessera/schedule/generate.h"
#include "tessera/train/checkpointing.h"
#include "tessera/train/muon.h"
#include "tests/parity/fixture.h"

namespace tessera::parity {
namespace {

struct Layout {
  int dp_replicate = 1, dp_shard = 1, tp = 1;
  std::string placement = "full_shard";
  bool sequence_parallel = true;
  std::string checkpointing = "none";
  int pp = 1;
  std::string schedule = "1F1B";
  std::vector<int64_t> stage_layers = {};
  bool reshard_after_forward = true;

  mesh::MeshShape shape() const {
    return {.pp = pp, .dp_replicate = dp_replicate, .dp_shard = dp_shard, .tp = tp};
  }
};

// NOLINTNEXTLINE(readability-identifier-naming): GoogleTest looks for this name.
void PrintTo(const Layout& layout, std::ostream* out) {
  *out << fmt::format("{}x{}x{}x{} {} {} {} {}", layout.pp, layout.dp_replicate, layout.dp_shard,
                      layout.tp, layout.placement, layout.sequence_parallel ? "sp" : "",
                      layout.checkpointing, layout.schedule);
}

config::RunConfig with_layout(config::RunConfig job, const Layout& layout) {
  job.parallel.num_ranks = layout.shape().num_ranks();
  job.parallel.placement = *value_named<parallel::Placement>(layout.placement);
  job.parallel.dp_replicate = layout.dp_replicate;
  job.parallel.dp_shard = layout.dp_shard;
  job.parallel.tp = layout.tp;
  // Without tp it can have no effect.
  job.parallel.sequence_parallel = layout.sequence_parallel || layout.tp == 1;
  job.memory.checkpointing = *value_named<memory::CheckpointMode>(layout.checkpointing);
  job.parallel.pp = layout.pp;
  if (layout.pp > 1) {
    job.parallel.pipeline_schedule = layout.schedule;
    job.parallel.stage_layers = layout.stage_layers;
  }
  job.parallel.reshard_after_forward = layout.reshard_after_forward;
  config::check(job, {});
  return job;
}

config::RunConfig micro_job(const Layout& layout) {
  auto job = recorded_job(64, 8);
  job.model.preset = "micro";
  job.train.micro_batch = layout.pp == 1 ? 0 : layout.dp_replicate * layout.dp_shard == 1 ? 2 : 1;
  return with_layout(job, layout);
}

Recorded recorded_micro() {
  const auto parity = read_fixture("llama_micro/parity.json")["micro"];
  return {parity["ddp_2ranks_fp32"]["loss"], parity["ddp_2ranks_fp32"]["grad_norm"]};
}

/// A schedule with two stages a rank leaves the first and the last of four without layers.
Layout piped(Layout layout, const schedule::FamilyFacts& facts) {
  layout.pp = 2;
  layout.schedule = facts.name;
  layout.stage_layers = schedule::stages_per_rank({.family = facts.family}) == 2
                            ? std::vector<int64_t>{0, 1, 1, 0}
                            : std::vector<int64_t>{1, 1};
  return layout;
}

/// Ranks of the data axes and of tp, each way to keep activations, each schedule: all of them
/// if TESSERA_EVERY_LAYOUT is set, else each of them somewhere, and each schedule alone.
std::vector<Layout> pipelines() {
  std::vector<Layout> list;
  const bool every = std::getenv("TESSERA_EVERY_LAYOUT") != nullptr;
  const auto& families = schedule::families();
  size_t turn = 0;
  const auto add = [&](Layout layout) {
    const char* kinds[] = {"none", "full", "selective"};
    const bool alone = layout.shape().num_ranks() == 1;
    ++turn;
    for (size_t kind = 0; kind < 3; ++kind) {
      layout.checkpointing = kinds[kind];
      for (size_t i = 0; i < families.size(); ++i) {
        // Four data ranks have two micro-batches each; DualPipeV needs four.
        const bool fits = families[i].family != schedule::Family::dual_pipe_v ||
                          layout.dp_replicate * layout.dp_shard < 4;
        const bool chosen = alone ? i % 3 == kind || kind == 0
                                  : i == (3 * turn + 1) % families.size() && kind == turn % 3;
        if (fits && (every || chosen)) list.push_back(piped(layout, families[i]));
      }
    }
  };
  for (const int dp_replicate : {1, 2}) {
    for (const int dp_shard : {1, 2}) {
      const auto* placement = dp_shard > 1 ? "full_shard" : "replicate";
      add({dp_replicate, dp_shard, 1, placement});
      if (dp_replicate * dp_shard == 4) continue;  // 16 ranks
      for (const bool sequence : {false, true}) {
        add({dp_replicate, dp_shard, 2, placement, sequence});
      }
    }
  }
  for (const auto* placement : {"shard_optimizer", "shard_gradients"}) {
    list.push_back(piped({1, 2, 1, placement}, families[1]));
  }
  list.push_back(piped({1, 2, 1, "full_shard"}, schedule::facts(schedule::Family::zbv)));
  list.back().reshard_after_forward = false;
  return list;
}

std::vector<Layout> layouts() {
  auto list = pipelines();
  for (const bool sequence : {false, true}) {
    for (const auto* checkpointing : {"none", "full", "selective"}) {
      list.push_back({1, 1, 2, "replicate", sequence, checkpointing});
      list.push_back({1, 2, 2, "full_shard", sequence, checkpointing});
    }
    list.push_back({2, 1, 2, "replicate", sequence});
    list.push_back({1, 1, 4, "full_shard", sequence});
    list.push_back({1, 2, 2, "shard_optimizer", sequence});
    list.push_back({1, 2, 2, "shard_gradients", sequence});
    list.push_back({2, 2, 2, "full_shard", sequence, "full"});
  }
  return list;
}

/// The layouts, grouped by mesh, whose ranks are started once.
std::vector<std::vector<Layout>> layouts_by_mesh() {
  std::map<std::vector<int>, std::vector<Layout>> meshes;
  for (const auto& layout : layouts()) {
    meshes[{layout.pp, layout.dp_replicate, layout.dp_shard, layout.tp}].push_back(layout);
  }
  std::vector<std::vector<Layout>> result;
  for (auto& [sizes, list] : meshes) result.push_back(std::move(list));
  return result;
}

class ModelParallelTest : public ::testing::TestWithParam<std::vector<Layout>> {};

TEST_P(ModelParallelTest, LlamaEqualsTheRecordedRun) {
  const auto deadline = std::chrono::seconds(60) * static_cast<int64_t>(GetParam().size());
  on_mesh({.shape = GetParam().front().shape(), .deadline = deadline},
          [&](const mesh::DeviceMesh& mesh) {
            for (const auto& layout : GetParam()) {
              SCOPED_TRACE(::testing::PrintToString(layout));
              auto run = train::assemble(micro_job(layout), mesh);
              expect_recorded(run, recorded_micro());
            }
          });
}

INSTANTIATE_TEST_SUITE_P(All, ModelParallelTest, ::testing::ValuesIn(layouts_by_mesh()));

/// The largest difference between what this rank holds and the same elements of a run on one rank.
double largest_difference(train::Run& run, train::Run& one) {
  const auto whole = one.model->named_parameters();
  double largest = 0;
  for (const auto& part : train::held_state(run)) {
    if (checkpoint::is_optimizer_state(part.extent.name)) continue;
    const auto expected = whole[part.extent.name].detach().view(-1);
    part.extent.stripe.for_each_stretch(
        part.extent.begin, part.extent.length, [&](int64_t position, int64_t k, int64_t n) {
          const auto difference =
              part.values.narrow(0, k - part.extent.begin, n) - expected.narrow(0, position, n);
          largest = std::max(largest, difference.abs().max().item<double>());
        });
  }
  return largest;
}

TEST(ModelParallel, StartsAndEndsLikeOneRank) {
  const auto zbv = schedule::facts(schedule::Family::zbv);
  for (const auto& layout : {Layout{1, 2, 2}, Layout{1, 1, 4}, piped({1, 2, 2}, zbv)}) {
    on_mesh({.shape = layout.shape()}, [&](const mesh::DeviceMesh& mesh) {
      auto run = train::assemble(micro_job(layout), mesh);
      auto one = train::assemble(micro_job({}), mesh::DeviceMesh());
      EXPECT_EQ(largest_difference(run, one), 0);
      for (int64_t step = 0; step < 20; ++step) {
        train::train_step(run, step), train::train_step(one, step);
      }
      EXPECT_LT(largest_difference(run, one), 1e-5);
    });
  }
}

/// A function of tensor and position alone.
double made_value(const std::string& name, int64_t position) {
  return std::sin(static_cast<double>(std::hash<std::string>()(name) % 1000 + 1) *
                  static_cast<double>(position + 1));
}

/// visit(part, positions): each of this rank's parts of matrices, and where its elements lie in the
/// whole matrix.
template <typename Visit>
void for_each_matrix_part(const train::Run& run, const Visit& visit) {
  const auto parts = run.parallel.parts();
  for (const auto& part : parts) {
    if (!part.slice) continue;
    if (run.parallel.slices()[*part.slice].treatment != optim::Treatment::matrices) continue;
    const auto divided = run.tensor_parts.find(part.extent.name);
    const auto stripe = divided == run.tensor_parts.end() ? Stripe() : divided->second.stripe;
    std::vector<int64_t> positions;
    for (int64_t k = 0; k < part.extent.values.numel(); ++k) {
      positions.push_back(stripe.position(part.extent.begin + k));
    }
    visit(part, positions);
  }
}

/// What one rank alone makes of the whole matrix.
torch::Tensor whole_update(const train::Run& run, const std::string& name) {
  const auto& shape = std::ranges::find(run.parameters, name, &train::Parameter::name)->shape;
  auto matrix = torch::empty(shape, torch::kBFloat16);
  for (int64_t i = 0; i < matrix.numel(); ++i) matrix.view({-1})[i] = made_value(name, i);
  return optim::orthogonalised(matrix, {.type = optim::OptimizerType::muon}).reshape({-1});
}

/// However matrices are divided, each rank's part of an update is that of the whole matrix, to the
/// bit.
void expect_whole_matrices(const train::Run& run) {
  std::vector<torch::Tensor> directions;
  std::map<size_t, size_t> index_of;  // by slice
  for (size_t i = 0; i < run.parallel.slices().size(); ++i) {
    const auto& slice = run.parallel.slices()[i];
    if (slice.treatment != optim::Treatment::matrices) continue;
    index_of[i] = directions.size();
    directions.push_back(torch::zeros({slice.parameter.numel()}, torch::kBFloat16));
  }
  for_each_matrix_part(run, [&](const auto& part, const std::vector<int64_t>& positions) {
    auto values =
        directions[index_of.at(*part.slice)].narrow(0, part.offset, part.extent.values.numel());
    for (size_t k = 0; k < positions.size(); ++k) {
      values[static_cast<int64_t>(k)] = made_value(part.extent.name, positions[k]);
    }
  });
  const train::Orthogonaliser orthogonalise(run.parallel, run.tensor_parts,
                                            {.type = optim::OptimizerType::muon});
  std::vector<torch::Tensor> updates;
  orthogonalise({.direction = [&](size_t slice) { return directions.at(slice); },
                 .apply =
                     [&](size_t slice, const torch::Tensor& orthogonal) {
                       EXPECT_EQ(slice, updates.size());
                       updates.push_back(orthogonal);
                     }});
  ASSERT_EQ(updates.size(), directions.size());
  std::map<std::string, torch::Tensor> whole;
  for_each_matrix_part(run, [&](const auto& part, const std::vector<int64_t>& positions) {
    const auto& name = part.extent.name;
    if (!whole.contains(name)) whole[name] = whole_update(run, name);
    const auto own =
        updates[index_of.at(*part.slice)].narrow(0, part.offset, part.extent.values.numel());
    EXPECT_TRUE(torch::equal(own, whole[name].index_select(0, torch::tensor(positions)))) << name;
  });
}

// Losses beside those of one rank: small singular values of a gradient, and with them its last bits,
// are made large, so runs go apart sooner than AdamW's.
TEST(ModelParallel, MuonUpdatesWholeMatrices) {
  const auto zbv = schedule::facts(schedule::Family::zbv);
  for (const auto& layout :
       {Layout{2, 1, 1, "replicate"}, Layout{1, 2, 1, "shard_optimizer"},
        Layout{1, 2, 1, "shard_gradients"}, Layout{1, 4, 1, "full_shard"}, Layout{2, 2, 1},
        Layout{1, 2, 2}, Layout{1, 1, 4}, piped({1, 2, 1}, zbv)}) {
    SCOPED_TRACE(::testing::PrintToString(layout));
    on_mesh({.shape = layout.shape()}, [&](const mesh::DeviceMesh& mesh) {
      auto job = micro_job(layout), alone = micro_job({});
      job.optimizer.type = alone.optimizer.type = optim::OptimizerType::muon;
      auto run = train::assemble(job, mesh);
      auto one = train::assemble(alone, mesh::DeviceMesh());
      expect_whole_matrices(run);
      for (int64_t step = 0; step < 10; ++step) {
        const double loss = train::train_step(run, step).loss;
        EXPECT_NEAR(loss / train::train_step(one, step).loss, 1, 2e-3) << step;
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
  EXPECT_EQ(found.sent, expected.sent) << axis;
}

class TrafficTest : public ::testing::TestWithParam<Layout> {};

TEST_P(TrafficTest, IsWhatIsEstimated) {
  const auto& layout = GetParam();
  auto job = recorded_job(64, 8);
  job.model.preset = "micro";
  job.model.tie_embeddings = layout.placement == "replicate";
  job.train.micro_batch = layout.pp == 1 ? 0 : 2;
  job = with_layout(job, layout);
  on_mesh({.shape = layout.shape()}, [&](const mesh::DeviceMesh& mesh) {
    auto run = train::assemble(job, mesh);
    train::train_step(run, 0);  // shapes of messages are agreed, too
    train::train_step(run, 1);
    const auto expected = predict::communication(job, run.rank_plan());
    expect_traffic(run.traffic.dp(), expected.dp(), "dp");
    expect_traffic(run.traffic.tp(), expected.tp(), "tp");
    expect_traffic(run.traffic.pp(), expected.pp(), "pp");
    EXPECT_EQ(expected.dp().total() > 0, run.data_axis.size() > 1);
    EXPECT_EQ(expected.tp().total() > 0, run.tensor_axis.size() > 1);
    EXPECT_EQ(expected.pp().total() > 0, run.pipeline_axis.size() > 1);
  });
}

INSTANTIATE_TEST_SUITE_P(
    All, TrafficTest,
    ::testing::Values(Layout{1, 1, 2, "replicate", false}, Layout{1, 1, 2, "replicate", true},
                      Layout{1, 2, 2, "full_shard", true, "selective"},
                      Layout{2, 1, 2, "replicate", true, "full"},
                      Layout{1, 1, 1, "replicate", true, "none", 2, "1F1B", {1, 1}},
                      Layout{1, 2, 1, "full_shard", true, "none", 2, "1F1B", {1, 1}},
                      Layout{1, 1, 2, "full_shard", true, "none", 2, "ZBVZeroBubble", {0, 1, 1, 0}},
                      Layout{1, 2, 2, "full_shard", false, "full", 2, "ZB-H1", {1, 1}}));

/// Steps of `job` divided, beside one rank's.
void expect_like_one_rank(const config::RunConfig& job, const Layout& layout, size_t steps,
                          double tolerance) {
  on_mesh({.shape = layout.shape()}, [&](const mesh::DeviceMesh& mesh) {
    auto run = train::assemble(with_layout(job, layout), mesh);
    auto one = train::assemble(with_layout(job, {}), mesh::DeviceMesh());
    for (size_t step = 0; step < steps; ++step) {
      const auto found = train::train_step(run, static_cast<int64_t>(step));
      const auto expected = train::train_step(one, static_cast<int64_t>(step));
      EXPECT_NEAR(found.loss / expected.loss, 1, tolerance) << "step " << step;
      EXPECT_NEAR(found.grad_norm / expected.grad_norm, 1, 10 * tolerance) << "step " << step;
    }
  });
}

class FamilyModelParallelTest : public ::testing::TestWithParam<std::string> {};

TEST_P(FamilyModelParallelTest, EqualsOneRank) {
  auto job = recorded_job(24, 8);
  job.model.path = "tests/fixtures/families/" + GetParam();
  job.model.init = models::Init::pretrained;
  job.train.micro_batch = 2;
  for (const bool sequence : {false, true}) {
    expect_like_one_rank(job, {1, 2, 2, "full_shard", sequence, "selective"}, 3, 2e-5);
    expect_like_one_rank(job, {1, 1, 2, "full_shard", sequence, "selective", 2, "ZB-H1"}, 3, 2e-5);
  }
}
INSTANTIATE_TEST_SUITE_P(All, FamilyModelParallelTest,
                         ::testing::Values("llama_biases", "llama_tied", "mistral", "qwen2",
                                           "qwen3", "olmo2", "smollm3", "phi3", "phi3_longrope",
                                           "gemma3", "gemma2", "mixtral", "qwen3_moe", "olmoe",
                                           "qwen2_moe", "pr_moe", "deepseek_v3",
                                           "deepseek_v3_plain", "gpt_oss"));

TEST(ModelParallel, Gpt2WithDropoutEqualsOneRank) {
  auto job = recorded_job(24, 8);
  job.model.preset = "gpt2", job.model.dropout = 0.2, job.model.vocab_size = 257;
  job.model.num_layers = 2, job.model.dim = 48, job.model.num_heads = 6;
  job.model.init_std = 0.1;
  job.optimizer.decay_norms_and_biases = false;
  for (const bool sequence : {false, true}) {
    expect_like_one_rank(job, {1, 2, 2, "full_shard", sequence}, 5, 2e-5);
    expect_like_one_rank(job, {1, 1, 3, "replicate", sequence, "full"}, 5, 2e-5);
  }
  // The table of words is on the first rank and on the last; or on the first alone, twice.
  job.model.num_layers = 4, job.train.micro_batch = 2;
  for (const auto* schedule : {"GPipe", "1F1B", "Interleaved1F1B", "ZBVZeroBubble", "DualPipeV"}) {
    for (const auto* checkpointing : {"none", "selective"}) {
      expect_like_one_rank(job, {1, 1, 1, "replicate", true, checkpointing, 2, schedule}, 5, 2e-5);
    }
  }
  expect_like_one_rank(job, {1, 2, 2, "full_shard", true, "full", 2, "ZBVZeroBubble"}, 3, 2e-5);
}

TEST(ModelParallel, StagesByMeasuredCost) {
  auto job = recorded_job(24, 4);
  job.model.preset = "micro", job.model.num_layers = 4;
  job.model.vocab_size = 65536;  // the head is dearer than all layers: it stands alone
  const Layout layout{1, 1, 1, "replicate", true, "none", 2};
  on_mesh({.shape = layout.shape()}, [&](const mesh::DeviceMesh& mesh) {
    auto divided = with_layout(job, layout);
    divided.parallel.stage_balance = parallel::StageBalance::measured;
    const auto run = train::assemble(divided, mesh);
    EXPECT_EQ(run.plan.pipeline.layers_of(1).begin, 4);
    EXPECT_EQ(run.model->blocks().size(), mesh.rank() == 0 ? 4U : 0U);
  });
  expect_like_one_rank(job, layout, 2, 2e-5);
}

TEST(ModelParallel, UnevenStagesAndMicroBatches) {
  auto job = recorded_job(24, 6);
  job.model.preset = "micro", job.model.num_layers = 8;
  for (const auto* schedule : {"1F1B", "ZB-H2", "LoopedBFS"}) {  // one sequence a micro-batch
    expect_like_one_rank(job, {1, 1, 1, "replicate", true, "none", 3, schedule}, 3, 2e-5);
  }
  job.train.global_batch = 5;
  for (const auto* schedule : {"GPipe", "1F1B", "ZB-1p"}) {
    expect_like_one_rank(job, {1, 1, 1, "replicate", true, "full", 4, schedule}, 3, 2e-5);
  }
}

TEST(ModelParallel, Bf16StaysNear) {
  for (const bool autocast : {false, true}) {
    auto job = recorded_job(64, 8);
    job.model.preset = "micro";
    job.precision.compute = FloatType::bf16;
    job.precision.autocast = autocast;
    for (const auto& layout :
         {Layout{1, 2, 2}, piped({1, 2, 1}, schedule::facts(schedule::Family::zbv))}) {
      if (layout.pp > 1) job.train.micro_batch = 1;
      on_mesh({.shape = layout.shape()}, [&](const mesh::DeviceMesh& mesh) {
        auto run = train::assemble(with_layout(job, layout), mesh);
        const auto losses = recorded_micro().losses;
        for (size_t step = 0; step < losses.size(); ++step) {
          const auto loss = train::train_step(run, static_cast<int64_t>(step)).loss;
          EXPECT_NEAR(loss / losses[step], 1, 7e-3) << "step " << step;
        }
      });
    }
  }
}

TEST(ModelParallel, RefusesHeadsThatDoNotDivide) {
  auto job = recorded_job(24, 8);
  job.model.preset = "gpt2", job.model.dim = 48, job.model.num_heads = 6;
  try {
    with_layout(job, {1, 1, 4});
    FAIL() << "expected an error";
  } catch (const UserError& error) {
    EXPECT_STREQ(error.what(),
                 "parallel.tp: 6 heads (6 of keys) cannot be divided over 4 ranks; set one of 1, "
                 "2, 3, 6");
  }
}

}  // namespace
}  // namespace tessera::parity
