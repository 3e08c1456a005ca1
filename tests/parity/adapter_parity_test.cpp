// Training of adapters against what PyTorch and PEFT recorded, in every layout; what travels, what is
// stored, and what a stored one answers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>

#include "tessera/base/testing.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/checkpoint/safetensors.h"
#include "tessera/checkpoint/tensors.h"
#include "tessera/inference/model.h"
#include "tessera/kernels/cpu/memory.h"
#include "tessera/predict/step_memory.h"
#include "tessera/train/checkpointing.h"
#include "tests/parity/fixture.h"
#include "tests/support/shared_folder.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/train_from.h"

namespace tessera::parity {
namespace {

using tessera::testing::message_of;
using ::testing::HasSubstr;

constexpr const char* kFixture = "tests/fixtures/lora_micro";
constexpr int64_t kTrained = 3584;

struct AdapterLayout {
  int dp_replicate = 1, dp_shard = 1, tp = 1, pp = 1;
  parallel::Placement placement = parallel::Placement::replicate;
  bool sequence_parallel = true;
  memory::CheckpointMode checkpointing = memory::CheckpointMode::none;
  std::string schedule = "1F1B";
  std::vector<int64_t> stage_layers = {1, 1};

  mesh::MeshShape shape() const {
    return {.pp = pp, .dp_replicate = dp_replicate, .dp_shard = dp_shard, .tp = tp};
  }
};

// NOLINTNEXTLINE(readability-identifier-naming): GoogleTest looks for this name.
void PrintTo(const AdapterLayout& layout, std::ostream* out) {
  *out << fmt::format("{}x{}x{}x{} {}{} {} {}", layout.pp, layout.dp_replicate, layout.dp_shard,
                      layout.tp, text_of(layout.placement), layout.sequence_parallel ? " sp" : "",
                      text_of(layout.checkpointing), layout.schedule);
}

config::RunConfig with_layout(config::RunConfig job, const AdapterLayout& layout) {
  job.parallel.num_ranks = layout.shape().num_ranks();
  job.parallel.placement = layout.placement;
  job.parallel.dp_replicate = layout.dp_replicate;
  job.parallel.dp_shard = layout.dp_shard;
  job.parallel.tp = layout.tp;
  job.parallel.sequence_parallel = layout.sequence_parallel || layout.tp == 1;
  job.parallel.pp = layout.pp;
  if (layout.pp > 1) {
    job.parallel.pipeline_schedule = layout.schedule;
    job.parallel.stage_layers = layout.stage_layers;
    job.train.micro_batch = layout.dp_shard == 1 ? 2 : 1;
  }
  job.memory.checkpointing = layout.checkpointing;
  const int data_ranks = layout.dp_replicate * layout.dp_shard;
  if (job.train.global_batch % data_ranks == 0) config::check(job, {});
  return job;
}

/// The recorded run's: all but what it starts from.
config::RunConfig adapter_job() {
  auto job = recorded_job(64, 8);
  job.model.path = "tests/fixtures/llama_micro";
  job.model.init = models::Init::pretrained;
  job.adapter.type = models::AdapterType::lora;
  job.adapter.rank = 8;
  job.adapter.alpha = 16;
  job.adapter.targets = {"q_proj", "v_proj"};
  job.optimizer.learning_rate = 1e-2;
  return job;
}

std::string peft_name(const std::string& name) { return "base_model.model." + name + ".weight"; }

/// visit(part's values, the same elements of the file's tensor) for each of this rank's parts.
template <typename Visit>
void beside_file(const train::Run& run, const std::string& path, const Visit& visit) {
  const checkpoint::SafetensorsFile stored(path);
  for (const auto& part : run.parallel.parts()) {
    if (!part.slice) continue;
    const auto& extent = part.extent;
    const auto whole = checkpoint::read_tensor(stored, peft_name(extent.name)).view({-1});
    const auto divided = run.tensor_parts.find(extent.name);
    const auto stripe = divided == run.tensor_parts.end() ? Stripe() : divided->second.stripe;
    stripe.for_each_stretch(
        extent.begin, extent.length, [&](int64_t position, int64_t k, int64_t n) {
          visit(extent.values.narrow(0, k - extent.begin, n), whole.narrow(0, position, n));
        });
  }
}

/// A run that starts from the recorded one's adapter.
train::Run recorded_start(const config::RunConfig& job, const mesh::DeviceMesh& mesh) {
  auto run = train::assemble(job, mesh);
  beside_file(run, std::string(kFixture) + "/init/adapter_model.safetensors",
              [](torch::Tensor values, const torch::Tensor& stored) { values.copy_(stored); });
  run.parallel.values_changed();
  return run;
}

Recorded recorded_adapter() {
  const auto train = read_fixture("lora_micro/parity.json")["train"];
  return {train["loss"], train["grad_norm"]};
}

int64_t num_trained(const train::Run& run) {
  int64_t sum = 0;
  for (const auto& parameter : run.parameters) {
    if (parameter.trained) sum += c10::multiply_integers(parameter.shape);
  }
  return sum;
}

std::vector<AdapterLayout> adapter_layouts() {
  using enum parallel::Placement;
  constexpr auto kFull = memory::CheckpointMode::full;
  constexpr auto kFeedForward = memory::CheckpointMode::feed_forward;
  constexpr auto kSelective = memory::CheckpointMode::selective;
  std::vector<AdapterLayout> list{
      {}, {.checkpointing = kFull}, {.checkpointing = kFeedForward}, {.checkpointing = kSelective}};
  for (const int ranks : {2, 3}) {
    list.push_back({.dp_replicate = ranks});
    for (const auto placement : {shard_optimizer, shard_gradients, full_shard}) {
      list.push_back({.dp_shard = ranks, .placement = placement});
      list.push_back({.dp_shard = ranks, .placement = placement, .checkpointing = kFull});
    }
  }
  for (const bool sequence : {false, true}) {
    for (const auto mode : {memory::CheckpointMode::none, kFull, kFeedForward, kSelective}) {
      list.push_back({.tp = 2, .sequence_parallel = sequence, .checkpointing = mode});
    }
    list.push_back({.tp = 4, .sequence_parallel = sequence});
    list.push_back(
        {.dp_shard = 2, .tp = 2, .placement = full_shard, .sequence_parallel = sequence});
  }
  list.push_back({.pp = 2});
  list.push_back({.pp = 2, .checkpointing = kFull});
  list.push_back({.pp = 2, .schedule = "ZBVZeroBubble", .stage_layers = {0, 1, 1, 0}});
  list.push_back({.tp = 2, .pp = 2, .schedule = "ZB-H1"});
  list.push_back({.dp_shard = 2, .pp = 2, .placement = full_shard});
  return list;
}

std::vector<std::vector<AdapterLayout>> adapter_layouts_by_mesh() {
  std::map<std::vector<int>, std::vector<AdapterLayout>> meshes;
  for (const auto& layout : adapter_layouts()) {
    meshes[{layout.pp, layout.dp_replicate, layout.dp_shard, layout.tp}].push_back(layout);
  }
  std::vector<std::vector<AdapterLayout>> result;
  for (auto& [sizes, list] : meshes) result.push_back(std::move(list));
  return result;
}

class AdapterLayoutTest : public ::testing::TestWithParam<std::vector<AdapterLayout>> {};

TEST_P(AdapterLayoutTest, LoraEqualsTheRecordedRun) {
  const auto deadline = std::chrono::seconds(60) * static_cast<int64_t>(GetParam().size());
  on_mesh({.shape = GetParam().front().shape(), .deadline = deadline},
          [&](const mesh::DeviceMesh& mesh) {
            for (const auto& layout : GetParam()) {
              SCOPED_TRACE(::testing::PrintToString(layout));
              auto run = recorded_start(with_layout(adapter_job(), layout), mesh);
              EXPECT_EQ(num_trained(run), kTrained);
              expect_recorded(run, recorded_adapter());
              double largest = 0;
              beside_file(run, std::string(kFixture) + "/adapter_model.safetensors",
                          [&](const torch::Tensor& values, const torch::Tensor& stored) {
                            largest =
                                std::max(largest, (values - stored).abs().max().item<double>());
                          });
              EXPECT_LT(largest, 1e-4);
            }
          });
}
INSTANTIATE_TEST_SUITE_P(All, AdapterLayoutTest, ::testing::ValuesIn(adapter_layouts_by_mesh()));

// Logits of the recorded adapter, beside its base and added into it.
TEST(Adapter, LogitsEqualTheRecordedOnes) {
  const auto recorded = read_fixture("lora_micro/parity.json");
  const auto expected =
      torch::tensor(recorded["logits_row0_last_first64"].get<std::vector<float>>());
  const auto tokens = read_file("tests/fixtures/tokens_head.bin");
  auto row = torch::empty({1, 64}, torch::kLong);
  for (int64_t i = 0; i < 64; ++i) {
    row[0][i] = static_cast<unsigned char>(tokens[static_cast<size_t>(2 * i)]) +
                256 * static_cast<unsigned char>(tokens[static_cast<size_t>(2 * i + 1)]);
  }
  auto job = adapter_job();
  job.adapter = {};
  job.adapter.type = models::AdapterType::lora;
  auto beside = job, merged = job;
  beside.adapter.path = kFixture;
  merged.adapter.base = {kFixture};  // the new one adds nothing yet
  for (const auto& of : {beside, merged}) {
    const torch::NoGradGuard no_grad;
    auto run = train::assemble(of, mesh::DeviceMesh());
    run.model->eval();
    const auto logits = run.model->logits(row)[0][63].narrow(0, 0, 64);
    EXPECT_LE((logits - expected).abs().max().item<double>(), 2e-6);
  }
}

TEST(Adapter, TakesTheMemoryThatWasPredicted) {
  kernels::install_caching_allocator();
  for (const auto weights : {WeightFormat::as_stored, WeightFormat::nf4_double}) {
    for (const auto placement : {parallel::Placement::replicate, parallel::Placement::full_shard}) {
      for (const char* checkpointing : {"none", "selective", "full"}) {
        auto job = adapter_job();
        job.model = {};
        job.model.preset = "tiny";
        job.model.weights = weights;
        job.adapter.targets = {"all-linear"};
        job.data.seq_len = 128;
        const int ranks = placement == parallel::Placement::full_shard ? 2 : 1;
        job = with_layout(job,
                          {.dp_shard = ranks,
                           .placement = placement,
                           .checkpointing = *value_named<memory::CheckpointMode>(checkpointing)});
        on_mesh({.shape = {.dp_shard = ranks}}, [&](const mesh::DeviceMesh& mesh) {
          auto run = train::assemble(job, mesh);
          for (int64_t step = 0; step < 2; ++step) train::train_step(run, step);
          const auto predicted =
              predict::step_memory(job, run.rank_plan(), predict::this_cpu()).peak().total();
          EXPECT_NEAR(static_cast<double>(run.peak_tensors) / predicted, 1, 0.03)
              << text_of(weights) << " " << text_of(placement) << " " << checkpointing;
        });
      }
    }
  }
}

TEST(Adapter, GoesOnFromPeftsFolder) {
  auto job = adapter_job();
  job.adapter = {};
  job.adapter.type = models::AdapterType::lora;
  job.adapter.path = std::string(kFixture) + "/init";
  for (const auto& layout : {AdapterLayout{}, AdapterLayout{.tp = 2}}) {
    on_mesh({.shape = layout.shape()}, [&](const mesh::DeviceMesh& mesh) {
      auto run = train::assemble(with_layout(job, layout), mesh);
      EXPECT_EQ(num_trained(run), kTrained);
      expect_recorded(run, recorded_adapter());
    });
  }
}

struct AdapterKind {
  std::string name;
  std::function<void(config::RunConfig&)> set;
};

std::vector<AdapterKind> adapter_kinds() {
  const auto spec = [](int64_t rank, double alpha, std::vector<std::string> targets) {
    return models::AdapterSpec{.type = models::AdapterType::lora,
                               .rank = rank,
                               .alpha = alpha,
                               .targets = std::move(targets)};
  };
  const auto of = [spec](auto&&... settings) {
    return [=](config::RunConfig& job) {
      static_cast<models::AdapterSpec&>(job.adapter) = spec(settings...);
    };
  };
  using Names = std::vector<std::string>;
  std::vector<AdapterKind> kinds{
      {"dora", of(4, 8.0, Names{"all-linear"})},
      {"rslora", of(8, 8.0, Names{"q_proj", "v_proj", "down_proj"})},
      {"gaussian", of(8, 16.0, Names{"q_proj", "o_proj"})},
      {"embedding", of(4, 8.0, Names{"embed_tokens", "q_proj"})},
      {"modules_to_save", of(4, 8.0, Names{"q_proj"})},
      {"gpt2", of(4, 8.0, Names{"c_attn", "mlp.c_proj"})},
      {"gpt2_dora", of(4, 8.0, Names{"c_attn"})},
      {"lora_plus", of(8, 16.0, Names{"q_proj", "v_proj"})},
      {"pissa", of(4, 8.0, Names{"q_proj", "v_proj", "down_proj"})},
      {"gpt2_pissa_dora", of(4, 6.0, Names{"c_attn"})},
      {"orthogonal", of(4, 8.0, Names{"q_proj", "o_proj"})},
      {"upon_another", of(4, 8.0, Names{"q_proj", "up_proj"})},
      {"dora_nf4", of(4, 8.0, Names{"all-linear"})},
  };
  return kinds;
}

config::RunConfig job_of(const AdapterKind& kind) {
  auto job = adapter_job();
  kind.set(job);
  const auto is = [&](const char* name) { return kind.name == name; };
  if (kind.name.find("dora") != std::string::npos) job.adapter.type = models::AdapterType::dora;
  if (kind.name.starts_with("gpt2")) job.model.path = "tests/fixtures/gpt2_micro";
  if (is("rslora")) {
    job.adapter.rslora = true;
    job.adapter.rank_pattern = {{"v_proj", 4}, {"layers.1.mlp.down_proj", 16}};
    job.adapter.alpha_pattern = {{"q_proj", 24}};
  }
  if (is("gaussian")) job.adapter.init = models::AdapterInit::gaussian;
  if (is("modules_to_save")) job.adapter.modules_to_save = {"lm_head"};
  if (is("gpt2")) job.adapter.bias = models::AdapterBias::lora_only;
  if (is("lora_plus")) job.adapter.lr_ratio = 4;
  if (kind.name.find("pissa") != std::string::npos) job.adapter.init = models::AdapterInit::pissa;
  if (is("gpt2_pissa_dora")) job.adapter.rslora = true;
  if (is("orthogonal")) job.adapter.init = models::AdapterInit::orthogonal;
  if (is("upon_another")) job.adapter.base = {kFixture};
  if (is("dora_nf4")) job.model.weights = WeightFormat::nf4;
  return job;
}

// NOLINTNEXTLINE(readability-identifier-naming): GoogleTest looks for this name.
void PrintTo(const AdapterKind& kind, std::ostream* out) { *out << kind.name; }

class AdapterKindTest : public ::testing::TestWithParam<AdapterKind> {};

// From our first values, which make.py computes as well, as PEFT trains them.
TEST_P(AdapterKindTest, EqualsPeft) {
  const auto recorded = read_fixture("adapter_runs/expected.json")[GetParam().name];
  for (const auto& layout :
       {AdapterLayout{}, AdapterLayout{.dp_shard = 2, .placement = parallel::Placement::full_shard},
        AdapterLayout{.tp = 2}, AdapterLayout{.tp = 2, .sequence_parallel = false},
        AdapterLayout{.pp = 2},
        AdapterLayout{.checkpointing = memory::CheckpointMode::selective}}) {
    if (GetParam().name == "dora_nf4" && layout.tp > 1) continue;  // blocks of 64 would be cut
    SCOPED_TRACE(::testing::PrintToString(layout));
    on_mesh({.shape = layout.shape()}, [&](const mesh::DeviceMesh& mesh) {
      auto run = train::assemble(with_layout(job_of(GetParam()), layout), mesh);
      EXPECT_EQ(num_trained(run), recorded["trained"].get<int64_t>());
      for (size_t step = 0; step < recorded["loss"].size(); ++step) {
        const auto result = train::train_step(run, static_cast<int64_t>(step));
        EXPECT_NEAR(result.loss / recorded["loss"][step].get<double>(), 1, 2e-5) << step;
        EXPECT_NEAR(result.grad_norm / recorded["grad_norm"][step].get<double>(), 1, 1e-3) << step;
      }
    });
  }
}
INSTANTIATE_TEST_SUITE_P(All, AdapterKindTest, ::testing::ValuesIn(adapter_kinds()),
                         [](const auto& info) { return info.param.name; });

// Whatever the placement, what is summed over ranks is the adapter's gradient alone; a base that
// stays whole is gathered at the start and not again.
TEST(Adapter, AloneTravels) {
  using enum parallel::Placement;
  for (const auto placement : {shard_optimizer, shard_gradients, full_shard}) {
    const AdapterLayout layout{.dp_shard = 2, .placement = placement};
    on_mesh({.shape = layout.shape()}, [&](const mesh::DeviceMesh& mesh) {
      SCOPED_TRACE(text_of(placement));
      auto run = recorded_start(with_layout(adapter_job(), layout), mesh);
      for (int64_t step = 0; step < 2; ++step) train::train_step(run, step);
      constexpr double kBytes = 4 * kTrained, kPadding = 4 * 4 * 64;  // of each unit's buffer
      const auto dp = run.traffic.dp();
      EXPECT_GE(dp.reduce_scatter, kBytes);
      EXPECT_LE(dp.reduce_scatter, kBytes + kPadding);
      if (placement == full_shard) return;  // the base comes and goes
      EXPECT_GE(dp.all_gather, kBytes);
      EXPECT_LE(dp.all_gather, kBytes + kPadding);
    });
  }
}

// Adapters are trained in float32 beside a base that is kept in 16 bits alone.
/// States on the host, in 8 bits, or updated in the backward, beside the plain run of the same ranks.
TEST(Adapter, LittleMemoryChangesNoNumber) {
  for (const auto& layout :
       {AdapterLayout{}, AdapterLayout{.dp_replicate = 2},
        AdapterLayout{.dp_shard = 2, .placement = parallel::Placement::full_shard},
        AdapterLayout{.dp_shard = 3, .placement = parallel::Placement::full_shard}}) {
    SCOPED_TRACE(::testing::PrintToString(layout));
    on_mesh({.shape = layout.shape()}, [&](const mesh::DeviceMesh& mesh) {
      for (const auto weights : {WeightFormat::as_stored, WeightFormat::nf4_double}) {
        auto job = adapter_job();
        job.train.global_batch = 12;
        job.model.weights = weights;
        job.adapter.targets = {"q_proj", "gate_proj"};
        job.adapter.rank = 24;  // B of gate_proj has 4,224 numbers
        job.optimizer.type = optim::OptimizerType::adamw8bit;
        job.optimizer.learning_rate = 1e-3;
        job.optimizer.max_grad_norm = 0;
        job = with_layout(job, layout);
        const auto losses = [&](const config::RunConfig& changed) {
          config::check(changed, {});
          auto run = train::assemble(changed, mesh);
          std::vector<double> found;
          for (int64_t step = 0; step < 4; ++step) {
            found.push_back(train::train_step(run, step).loss);
          }
          return found;
        };
        const auto plain = losses(job);
        auto changed = job;
        changed.parallel.offload_optimizer = parallel::OffloadOptimizer::host;
        EXPECT_EQ(losses(changed), plain) << "offload_optimizer";
        changed = job;
        changed.parallel.offload_params = parallel::OffloadParams::host;
        EXPECT_EQ(losses(changed), plain) << "offload_params";
        changed.optimizer.in_backward = true;
        EXPECT_EQ(losses(changed), plain) << "offload_params, in_backward";
        changed.parallel.offload_params = parallel::OffloadParams::none;
        EXPECT_EQ(losses(changed), plain) << "in_backward";
        changed = job;
        changed.optimizer.type = optim::OptimizerType::adamw;
        const auto full = losses(changed);
        EXPECT_NE(full, plain);
        EXPECT_NEAR(full.back() / plain.back(), 1, 1e-2);
      }
    });
  }
}

TEST(Adapter, TheFrozenBaseIsKeptInTheDtypeOfComputation) {
  auto job = adapter_job();
  job.precision.compute = FloatType::bf16;
  on_mesh({.shape = {.dp_shard = 2}}, [&](const mesh::DeviceMesh& mesh) {
    const AdapterLayout layout{.dp_shard = 2, .placement = parallel::Placement::full_shard};
    auto run = recorded_start(with_layout(job, layout), mesh);
    for (const auto& part : run.parallel.parts()) {
      EXPECT_EQ(part.extent.values.scalar_type(), part.slice ? torch::kFloat32 : torch::kBFloat16)
          << part.extent.name;
    }
    const auto recorded = recorded_adapter();
    for (int64_t step = 0; step < 20; ++step) {
      const auto loss = train::train_step(run, step).loss;
      EXPECT_NEAR(loss / recorded.losses[static_cast<size_t>(step)], 1, 5e-3) << step;
    }
  });
}

// The adapter's first values are functions of (seed, name, position), and what it drops of (seed,
// step, name, row, position): no layout changes a loss.
TEST(Adapter, StartsAndDropsAlikeInEveryLayout) {
  auto job = adapter_job();
  job.adapter.targets = {"all-linear"};
  job.adapter.dropout = 0.2;
  for (const auto& [type, model] : std::vector<std::pair<models::AdapterType, std::string>>{
           {models::AdapterType::lora, "llama_micro"},
           {models::AdapterType::dora, "llama_micro"},
           {models::AdapterType::lora, "gpt2_micro"}}) {
    job.adapter.type = type;
    job.model.path = "tests/fixtures/" + model;
    for (const auto& layout : {AdapterLayout{.dp_replicate = 3},
                               AdapterLayout{.dp_shard = 2,
                               .placement = parallel::Placement::full_shard,
                               .checkpointing = memory::CheckpointMode::full},
                               AdapterLayout{.checkpointing = memory::CheckpointMode::selective},
                               AdapterLayout{.tp = 2, .sequence_parallel = false},
                               AdapterLayout{.tp = 2}, AdapterLayout{.pp = 2}}) {
      SCOPED_TRACE(::testing::PrintToString(layout));
      on_mesh({.shape = layout.shape()}, [&](const mesh::DeviceMesh& mesh) {
        auto run = train::assemble(with_layout(job, layout), mesh);
        auto one = train::assemble(with_layout(job, {}), mesh::DeviceMesh());
        for (int64_t step = 0; step < 5; ++step) {
          const auto found = train::train_step(run, step), expected = train::train_step(one, step);
          EXPECT_NEAR(found.loss / expected.loss, 1, 2e-5) << step;
          EXPECT_NEAR(found.grad_norm / expected.grad_norm, 1, 5e-4) << step;
        }
      });
    }
  }
}

constexpr int64_t kSteps = 6, kCut = 3;

config::RunConfig saving_job(const std::filesystem::path& folder) {
  auto job = adapter_job();
  job.train.steps = kSteps;
  job.train.run_dir = folder;
  job.checkpoint.every = kCut;
  return job;
}

// Two ranks save, others go on: the checkpoint has the adapter and its optimizer's states alone, and
// the layout of the reader.
TEST(AdapterCheckpoint, HoldsTheAdapterAloneAndIsGoneOnFromInAnyLayout) {
  const SharedFolder folder;
  const AdapterLayout first{.dp_shard = 2, .placement = parallel::Placement::full_shard};
  const auto folder_of = [&](int64_t step) {
    return folder.path() / "checkpoints" / fmt::format("step_{:08}", step);
  };
  on_mesh({.shape = first.shape()}, [&](const mesh::DeviceMesh& mesh) {
    auto run = train::assemble(with_layout(saving_job(folder.path()), first), mesh);
    train::Checkpointing saving(run, {});
    const auto losses = train_from(run, {}, kSteps, &saving);
    auto job = with_layout(saving_job(folder.path()), first);
    job.checkpoint.resume = folder_of(kCut);
    auto again = train::assemble(job, mesh);
    EXPECT_EQ(train_from(again, train::resume(again).counts, kSteps),
              std::vector<double>(losses.begin() + kCut, losses.end()));
  });
  const checkpoint::Checkpoint stored(folder_of(kCut));
  int64_t elements = 0;
  for (const auto& [name, info] : stored.tensors()) {
    EXPECT_THAT(name, HasSubstr("_proj.lora_"));
    elements += info.num_elements();
  }
  EXPECT_EQ(elements, 3 * kTrained);
  for (const auto& layout : {AdapterLayout{}, AdapterLayout{.tp = 2}, AdapterLayout{.pp = 2}}) {
    SCOPED_TRACE(::testing::PrintToString(layout));
    on_mesh({.shape = layout.shape()}, [&](const mesh::DeviceMesh& mesh) {
      auto job = with_layout(saving_job(folder.path()), layout);
      auto whole = train::assemble(job, mesh);
      const auto losses = train_from(whole, {}, kSteps);
      job.checkpoint.resume = folder_of(kCut);
      auto run = train::assemble(job, mesh);
      const auto rest = train_from(run, train::resume(run).counts, kSteps);
      ASSERT_EQ(rest.size(), static_cast<size_t>(kSteps - kCut));
      for (size_t i = 0; i < rest.size(); ++i) EXPECT_NEAR(rest[i] / losses[kCut + i], 1, 1e-5);
    });
  }
}

/// A copy of the base, whose last norm weighs otherwise.
std::string another_base(const std::filesystem::path& folder) {
  std::filesystem::create_directories(folder);
  std::filesystem::copy("tests/fixtures/llama_micro/config.json", folder);
  auto bytes = read_file("tests/fixtures/llama_micro/model.safetensors");
  bytes[bytes.size() - 2] = static_cast<char>(bytes[bytes.size() - 2] ^ 1);
  write_file(folder / "model.safetensors", bytes);
  return folder;
}

TEST(AdapterCheckpoint, IsRefusedBesideAnotherBase) {
  const SharedFolder folder;
  auto job = saving_job(folder.path());
  auto run = train::assemble(job, mesh::DeviceMesh());
  train::Checkpointing saving(run, {});
  train_from(run, {}, kSteps, &saving);
  job.checkpoint.resume = "auto";

  auto other = job;
  other.model.path = another_base(folder.path() / "other");
  auto beside_other = train::assemble(other, mesh::DeviceMesh());
  EXPECT_THAT(message_of([&] { train::resume(beside_other); }),
              HasSubstr("of an adapter beside other weights than model.path's"));

  auto whole = job;
  whole.adapter = {};
  auto of_model = train::assemble(whole, mesh::DeviceMesh());
  EXPECT_THAT(message_of([&] { train::resume(of_model); }), HasSubstr("of an adapter alone"));
}

// What a stored adapter answers is what the run would: its base is found and read beside it.
TEST(AdapterCheckpoint, AnswersAsTheRunDid) {
  const testing::TemporaryFolder folder;  // of each process
  auto job = saving_job(folder.path());
  job.adapter.type = models::AdapterType::dora;
  job.adapter.targets = {"all-linear"};
  auto run = train::assemble(job, mesh::DeviceMesh());
  train::Checkpointing saving(run, {});
  train_from(run, {}, kSteps, &saving);
  const auto ids = torch::arange(40).view({2, 20});
  run.model->eval();
  const auto expected = run.model->logits(ids).detach();
  for (const int tp : {1, 2}) {
    on_mesh({.shape = {.tp = tp}}, [&](const mesh::DeviceMesh& mesh) {
      const torch::NoGradGuard no_grad;
      const auto path = folder.path() / "checkpoints" / fmt::format("step_{:08}", kSteps);
      const auto stored = inference::load_model({.source = path}, std::nullopt, mesh);
      expect_close(stored.model->logits(ids), expected, {.absolute = 1e-5, .relative = 1e-4});
    });
  }
}

}  // namespace
}  // namespace tessera::parity
