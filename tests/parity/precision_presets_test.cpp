// Presets of precision in running jobs: each cell of their table by the dtype and bytes of the real tensors
// and counters, losses on any number of ranks, resumed in the middle.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <tuple>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/config/precision.h"
#include "tessera/train/checkpointing.h"
#include "tessera/train/memory_and_traffic.h"
#include "tessera/train/resume.h"
#include "tests/parity/fixture.h"
#include "tests/support/shared_folder.h"

namespace tessera::parity {
namespace {

using parallel::Placement;

constexpr int64_t kSteps = 4;
constexpr PrecisionPreset kPresets[] = {PrecisionPreset::fp16_amp, PrecisionPreset::te,
                                        PrecisionPreset::msamp_o1, PrecisionPreset::msamp_o2,
                                        PrecisionPreset::msamp_o3};

config::PrecisionSection precision_of(PrecisionPreset preset) {
  const auto name = std::string(text_of(preset));
  return config::load_run_config("", {{.key = "precision.preset", .value = name}}).config.precision;
}

config::RunConfig job_of(PrecisionPreset preset, Placement placement, int ranks) {
  auto job = recorded_job(/*seq_len=*/16, /*global_batch=*/12);
  job.model.preset = "micro";
  job.precision = precision_of(preset);
  job.precision.fp8_pad = job.precision.matmul != Matmul::as_compute;
  job.parallel.placement = placement;
  job.parallel.num_ranks = ranks;
  const bool sharded = parallel::is_sharded(placement);
  job.parallel.dp_shard = sharded ? ranks : 1;
  job.parallel.dp_replicate = sharded ? 1 : ranks;
  return job;
}

std::vector<double> losses_of(train::Run& run, int64_t begin, int64_t end) {
  std::vector<double> losses;
  for (int64_t step = begin; step < end; ++step) {
    const auto result = train::train_step(run, step);
    EXPECT_FALSE(result.skipped) << step;
    losses.push_back(result.loss);
  }
  return losses;
}

std::vector<double> losses_of(const config::RunConfig& job, const mesh::DeviceMesh& mesh) {
  config::check(job, {});
  auto run = train::assemble(job, mesh);
  return losses_of(run, 0, kSteps);
}

constexpr Placement kSharded[] = {Placement::shard_optimizer, Placement::shard_gradients,
                                  Placement::full_shard};

class Presets : public ::testing::TestWithParam<PrecisionPreset> {};

TEST_P(Presets, LossesAreNearThoseOfFloat32OnAnyRanks) {
  const auto preset = GetParam();
  const auto plain = losses_of(job_of(PrecisionPreset::none, Placement::replicate, 1), {});
  const auto one = losses_of(job_of(preset, Placement::replicate, 1), {});
  for (size_t i = 0; i < plain.size(); ++i) EXPECT_NEAR(one[i] / plain[i], 1, 0.01) << i;
  EXPECT_NE(one, plain);
  const auto expect_near = [&](const mesh::DeviceMesh& mesh, Placement placement, int ranks) {
    const auto found = losses_of(job_of(preset, placement, ranks), mesh);
    for (size_t i = 0; i < found.size(); ++i) {
      EXPECT_NEAR(found[i] / one[i], 1, 5e-3) << ranks << " " << text_of(placement) << " " << i;
    }
  };
  for (const int ranks : {2, 3, 4}) {
    on_mesh({.shape = {.dp_replicate = ranks}},
            [&](const mesh::DeviceMesh& mesh) { expect_near(mesh, Placement::replicate, ranks); });
    on_mesh({.shape = {.dp_shard = ranks}}, [&](const mesh::DeviceMesh& mesh) {
      for (const auto placement : kSharded) expect_near(mesh, placement, ranks);
    });
  }
}

/// Matrices and blocks divided, alone and with copies or shares of them.
TEST_P(Presets, LossesAreThoseOfOneRankUnderTensorAndPipelineParallelism) {
  const auto wide = [](Placement placement) {
    auto job = job_of(GetParam(), placement, 1);
    job.model.dim = 512, job.model.ffn_dim = 1024;  // parts of rows are whole blocks of 256 numbers
    return job;
  };
  const auto one = losses_of(wide(Placement::replicate), {});
  const std::vector<std::pair<mesh::MeshShape, Placement>> layouts{
      {{.tp = 2}, Placement::replicate},
      {{.pp = 2}, Placement::replicate},
      {{.dp_replicate = 2, .tp = 2}, Placement::replicate},
      {{.dp_shard = 2, .tp = 2}, Placement::full_shard},
      {{.pp = 2, .dp_shard = 2}, Placement::shard_optimizer},
      {{.pp = 2, .tp = 2}, Placement::replicate}};
  for (const auto& [shape, placement] : layouts) {
    on_mesh({.shape = shape}, [&](const mesh::DeviceMesh& mesh) {
      const auto found = losses_of(over(wide(placement), shape, placement), mesh);
      for (size_t i = 0; i < found.size(); ++i) {
        EXPECT_NEAR(found[i] / one[i], 1, 5e-3)
            << "tp " << shape.tp << " pp " << shape.pp << " " << text_of(placement) << " " << i;
      }
    });
  }
}

TEST_P(Presets, GoOnFromACheckpointWithTheSameBits) {
  const SharedFolder folder;
  on_mesh({.shape = {.dp_shard = 2}}, [&](const mesh::DeviceMesh& mesh) {
    for (const auto placement : kSharded) {
      auto job = job_of(GetParam(), placement, 2);
      job.train.run_dir = (folder.path() / std::string(text_of(placement))).string();
      job.train.steps = kSteps;
      job.checkpoint.every = 2;
      std::vector<double> whole;
      {
        auto run = train::assemble(job, mesh);
        train::Checkpointing saves(run, {});
        whole = losses_of(run, 0, 2);
        saves.after_step({.step = 2, .samples_seen = 24, .tokens_seen = 384}, {}, {});
        for (const double loss : losses_of(run, 2, kSteps)) whole.push_back(loss);
        saves.finish();
      }
      auto again = train::assemble(job, mesh);
      train::load_checkpoint(again, train::checkpoint_folder(job) / "step_00000002");
      EXPECT_EQ(losses_of(again, 2, kSteps), std::vector<double>(whole.begin() + 2, whole.end()));
    }
  });
}

/// The name in the table of what a tensor is kept in.
std::string name_of(torch::Dtype dtype) {
  static const std::map<torch::Dtype, std::string> names{{torch::kFloat32, "fp32"},
                                                         {torch::kBFloat16, "bf16"},
                                                         {torch::kHalf, "fp16"},
                                                         {torch::kFloat8_e4m3fn, "fp8"},
                                                         {torch::kByte, "fp8"}};
  return names.at(dtype);
}

/// The row of a run, read off the tensors of the last block's products in a step, and off the counters.
config::PrecisionRow row_of_tensors(train::Run& run, bool sharded) {
  config::PrecisionRow row;
  row.gemm = run.fp8.empty() ? name_of(run.autocast.value_or(torch::kHalf)) : "fp8";
  const auto axis = sharded ? "dp_shard" : "dp_replicate";
  const auto before = train::traffic_so_far(run);
  train::train_step(run, 0);
  const auto moved = train::traffic_so_far(run) - before;
  double elements = 0;
  const parallel::FlatBuffer* matrices = nullptr;
  for (const auto& unit : run.parallel.units()) {
    for (const auto& buffer : unit.buffers()) {
      elements += static_cast<double>(buffer.size());
      for (const auto& entry : buffer.entries()) {
        if (entry.name.find("layers.1.mlp.up_proj") != std::string::npos) matrices = &buffer;
      }
    }
  }
  const auto sum = moved.dp().all_to_all > 0 ? moved.dp().all_to_all
                   : sharded                 ? moved.dp().reduce_scatter
                                             : moved.dp().all_reduce;
  row.communication = sum < 1.1 * elements ? "fp8" : sum < 2.2 * elements ? "fp16" : "fp32";
  EXPECT_GT(sum, 0) << axis;
  const bool in_codes = matrices->has_codes();
  row.weight = name_of(in_codes ? matrices->codes.tensor().scalar_type()
                                : matrices->whole.tensor().scalar_type());
  const auto slice = name_of(matrices->slice().scalar_type());
  row.master_weight = slice == row.weight ? "none" : slice;
  row.gradient = name_of(matrices->gradient_of_slice().scalar_type());
  for (const auto& part : run.parallel.parts()) {
    const auto& [name, shape] = std::tie(part.extent.name, part.extent.shape);
    const bool chosen = name.find("layers.1.") != std::string::npos && shape.size() == 2 &&
                        shape[0] * shape[1] >= 4096;
    if (!chosen || !row.states.empty()) continue;
    for (const auto& [kind, values] : run.optimizer.states(*part.slice)) {
      if (kind.block > 1) continue;
      row.states += (row.states.empty() ? "" : "+") + name_of(values.scalar_type());
    }
  }
  return row;
}

std::string text(const config::PrecisionRow& row) {
  return fmt::format("{} {} {} {} {} {}", row.gemm, row.communication, row.weight,
                     row.master_weight, row.gradient, row.states);
}

TEST_P(Presets, CellsAreThoseOfTheTensors) {
  const auto expected = text(config::precision_row(precision_of(GetParam())));
  on_mesh({.shape = {.dp_shard = 2}}, [&](const mesh::DeviceMesh& mesh) {
    for (const auto placement : {Placement::shard_optimizer, Placement::full_shard}) {
      auto run = train::assemble(job_of(GetParam(), placement, 2), mesh);
      EXPECT_EQ(text(row_of_tensors(run, true)), expected) << text_of(placement);
    }
  });
  on_mesh({.shape = {.dp_replicate = 2}}, [&](const mesh::DeviceMesh& mesh) {
    auto run = train::assemble(job_of(GetParam(), Placement::replicate, 2), mesh);
    EXPECT_EQ(text(row_of_tensors(run, false)), expected);
  });
}

TEST_P(Presets, MemoryAndTrafficAreAsPredicted) {
  on_mesh({.shape = {.dp_shard = 2}}, [&](const mesh::DeviceMesh& mesh) {
    for (const auto placement : kSharded) {
      auto job = job_of(GetParam(), placement, 2);
      job.model.preset = "tiny";
      auto run = train::assemble(job, mesh);
      train::train_step(run, 0);
      train::train_step(run, 1);
      for (const auto& part : train::memory_account(run)) {
        const std::string name = part.name;
        if (name != "parameters" && name != "gathered" && name != "gradients" &&
            name != "optimizer")
          continue;
        const auto found = static_cast<double>(part.measured);
        const auto predicted = static_cast<double>(part.predicted);
        EXPECT_LE(found, 1.03 * predicted + 4096) << name << " " << text_of(placement);
        // A reduction that ends early frees its gradient before the next one is there.
        const double least = name == "gradients" ? 0.5 : 0.97;
        EXPECT_GE(found, least * predicted - 4096) << name << " " << text_of(placement);
      }
      for (const auto& part : train::traffic_account(run)) {
        const auto found = static_cast<double>(part.measured);
        EXPECT_NEAR(static_cast<double>(part.predicted), found, 0.02 * found)
            << part.name << " " << text_of(placement);
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Of, Presets, ::testing::ValuesIn(kPresets),
                         [](const auto& info) { return std::string(text_of(info.param)); });

/// Each setting by itself.
TEST(Fp8Storage, EachSettingAloneTrains) {
  const auto alone = [](auto change) {
    auto job = job_of(PrecisionPreset::none, Placement::full_shard, 2);
    job.precision.compute = FloatType::bf16;
    change(job.precision);
    return job;
  };
  const std::vector<config::RunConfig> jobs{
      alone([](auto& p) { p.weights = WeightStorage::fp8; }),
      alone([](auto& p) { p.gradients = GradientStorage::fp8; }),
      alone([](auto& p) { p.communication = GradientStorage::fp8; }),
      alone([](auto& p) { p.optimizer_states = optim::StateType::fp8_fp16; })};
  on_mesh({.shape = {.dp_shard = 2}}, [&](const mesh::DeviceMesh& mesh) {
    const auto plain = losses_of(alone([](auto&) {}), mesh);
    for (const auto& job : jobs) {
      const auto found = losses_of(job, mesh);
      EXPECT_NE(found, plain);
      for (size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i] / plain[i], 1, 0.01) << i;
    }
  });
}

std::string refusal(const config::RunConfig& job) {
  try {
    config::check(job, {});
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

/// Codes have no infinity: a weight that has one is named, not taken for another number.
TEST(Fp8Storage, InfiniteWeightsAreNamed) {
  const std::string weight = "model.layers.1.mlp.up_proj.weight";
  on_mesh({.shape = {.dp_shard = 2}}, [&](const mesh::DeviceMesh& mesh) {
    for (const auto placement : kSharded) {
      auto run = train::assemble(job_of(PrecisionPreset::msamp_o3, placement, 2), mesh);
      for (const auto& part : run.parallel.parts()) {
        const torch::NoGradGuard no_grad;
        if (part.extent.name == weight && part.extent.begin == 0) part.extent.values[0] = INFINITY;
      }
      run.parallel.values_changed();
      const auto result = train::train_step(run, 0);
      EXPECT_TRUE(result.skipped) << text_of(placement);
      EXPECT_EQ(result.without_scale, weight + " holds NaN or infinity") << text_of(placement);
    }
  });
}

TEST(Fp8Storage, MistakesAreNamed) {
  auto job = job_of(PrecisionPreset::msamp_o3, Placement::full_shard, 1);
  EXPECT_EQ(refusal(job), "");
  job.parallel.offload_params = parallel::OffloadParams::host;
  EXPECT_THAT(refusal(job), ::testing::HasSubstr("precision.weights: fp8 is not kept on the host"));
  job = job_of(PrecisionPreset::msamp_o1, Placement::full_shard, 1);
  job.precision.compute = FloatType::bf16;
  EXPECT_THAT(refusal(job), ::testing::HasSubstr("fp16 parameters compute in fp16"));
}

}  // namespace
}  // namespace tessera::parity
