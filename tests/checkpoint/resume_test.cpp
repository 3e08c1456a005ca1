// A run that was cut in two goes on as if it had not been.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tessera/base/file.h"
#include "tessera/base/testing.h"
#include "tessera/checkpoint/formats/convert.h"
#include "tessera/train/checkpointing.h"
#include "tests/parity/fixture.h"
#include "tests/support/shared_folder.h"
#include "tests/support/train_from.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kSteps = 6, kCut = 3;

config::RunConfig job_of(const SharedFolder& folder, const std::string& placement,
                         const mesh::MeshShape& shape) {
  auto job = parity::recorded_job(/*seq_len=*/64, /*global_batch=*/12);
  job.model.preset = "micro";
  job.data.shuffle = true;
  job.schedule.type = optim::LearningRateSchedule::cosine;
  job.train.steps = kSteps;
  job.train.run_dir = folder.path();
  job.parallel.num_ranks = shape.num_ranks();
  job.parallel.placement = *value_named<parallel::Placement>(placement);
  job.parallel.dp_replicate = shape.dp_replicate;
  job.parallel.dp_shard = shape.dp_shard;
  job.checkpoint.every = kCut;
  return job;
}

struct Cut {
  std::string placement;
  mesh::MeshShape shape;
  std::string precision = "fp32";
};

class ResumeTest : public ::testing::TestWithParam<Cut> {};

TEST_P(ResumeTest, SameRanksSameBitsOtherRanksSameSamples) {
  const SharedFolder folder;
  on_mesh({.shape = GetParam().shape}, [&](const mesh::DeviceMesh& mesh) {
    const auto& [placement, shape, precision] = GetParam();
    auto job = job_of(folder, placement, shape);
    job.precision.compute = *value_named<FloatType>(precision);
    auto whole = train::assemble(job, mesh);
    train::Checkpointing saving(whole, {});
    const auto losses = train_from(whole, {}, kSteps, &saving);

    // The checkpoint of the end goes, so that the one of the middle is the newest.
    if (mesh.rank() == 0)
      checkpoint::remove_checkpoint(folder.path() / "checkpoints/step_00000006");
    mesh.world().barrier();
    job.checkpoint.resume = "auto";
    auto resumed = train::assemble(job, mesh);
    const auto from = train::resume(resumed);
    EXPECT_EQ(from.counts.step, kCut);
    EXPECT_EQ(from.counts.samples_seen, kCut * 12);
    EXPECT_EQ(train_from(resumed, from.counts, kSteps),
              std::vector<double>(losses.begin() + kCut, losses.end()));
  });
  if (GetParam().precision != "fp32") return;
  for (const mesh::MeshShape& other : {mesh::MeshShape{.dp_shard = 1}, {.dp_shard = 3}}) {
    on_mesh({.shape = other}, [&](const mesh::DeviceMesh& mesh) {
      auto job = job_of(folder, "full_shard", other);
      auto whole = train::assemble(job, mesh);
      const auto losses = train_from(whole, {}, kSteps);
      job.checkpoint.resume = "auto";
      auto resumed = train::assemble(job, mesh);
      const auto again = train_from(resumed, train::resume(resumed).counts, kSteps);
      for (size_t i = 0; i < again.size(); ++i) {
        EXPECT_NEAR(again[i] / losses[kCut + i], 1, 1e-5);
      }
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Cuts, ResumeTest,
                         ::testing::Values(Cut{"replicate", {.dp_replicate = 2}},
                                           Cut{"shard_gradients", {.dp_shard = 2}},
                                           Cut{"full_shard", {.dp_shard = 3}},
                                           Cut{"full_shard", {.dp_replicate = 2, .dp_shard = 2}},
                                           Cut{"full_shard", {.dp_shard = 2}, "bf16"},
                                           Cut{"full_shard", {.dp_shard = 2}, "fp16"}));

/// What PyTorch's FSDP2 saved on two ranks (torch.distributed.checkpoint, by Accelerate), and the
/// losses of its next steps.
TEST(Resume, GoesOnFromPyTorchsDistributedCheckpoint) {
  const SharedFolder folder;
  const auto recorded = parity::read_fixture("dcp_micro/expected.json");
  for (const int ranks : {1, 2, 3}) {
    const mesh::MeshShape shape{.dp_shard = ranks};
    on_mesh({.shape = shape}, [&](const mesh::DeviceMesh& mesh) {
      const auto converted = folder.path() / fmt::format("converted_{}", ranks);
      if (mesh.rank() == 0) {
        checkpoint::convert({.from = {.source = "tests/fixtures/dcp_micro"},
                             .to = checkpoint::Target::tessera,
                             .destination = converted});
      }
      mesh.world().barrier();
      auto job = parity::recorded_job(/*seq_len=*/64, /*global_batch=*/8);
      job.model.preset = "micro";
      job.parallel = {.num_ranks = ranks, .placement = parallel::Placement::full_shard};
      job.checkpoint.resume = converted;
      auto run = train::assemble(job, mesh);
      const auto counts = train::resume(run).counts;
      EXPECT_EQ(counts.step, 5);
      const auto losses = train_from(run, counts, 10);
      for (size_t i = 0; i < losses.size(); ++i) {
        EXPECT_NEAR(losses[i] / recorded["losses_steps_6_10"][i].get<double>(), 1, 2e-5) << i;
      }
    });
  }
}

TEST(Resume, AnotherBatchGoesOnWithTheNextSample) {
  const SharedFolder folder;
  on_mesh({}, [&](const mesh::DeviceMesh& mesh) {
    auto job = job_of(folder, "replicate", {});
    job.train.steps = kCut;
    auto run = train::assemble(job, mesh);
    train::Checkpointing saving(run, {});
    train_from(run, {}, kCut, &saving);
    const auto next = run.train_loader.batch(kCut, 0, 4);

    job.train.global_batch = 4;
    job.checkpoint.resume = "auto";
    auto resumed = train::assemble(job, mesh);
    train::resume(resumed);
    EXPECT_TRUE(torch::equal(resumed.train_loader.batch(kCut).inputs, next.inputs));
  });
}

TEST(Resume, TakesTheNewestThatIsWholeAndSaysWhatItPassedOver) {
  const SharedFolder folder;
  on_mesh({}, [&](const mesh::DeviceMesh& mesh) {
    auto job = job_of(folder, "replicate", {});
    job.checkpoint.every = 2;
    {
      auto run = train::assemble(job, mesh);
      train::Checkpointing saving(run, {});
      train_from(run, {}, kSteps, &saving);
    }
    const auto checkpoints = folder.path() / "checkpoints";
    std::filesystem::remove(checkpoints / "step_00000006/complete.json");
    const auto shard = checkpoints / "step_00000004/shard_00000.safetensors";
    {
      std::fstream file(shard, std::ios::in | std::ios::out | std::ios::binary);
      file.seekp(200'000);
      file.put('\x55');
    }
    job.checkpoint.resume = "auto";
    auto run = train::assemble(job, mesh);
    const auto resumed = train::resume(run);
    EXPECT_EQ(resumed.counts.step, 2);
    ASSERT_EQ(resumed.notes.size(), 3u);
    EXPECT_THAT(resumed.notes[0], HasSubstr("step_00000006: not complete"));
    EXPECT_THAT(resumed.notes[1],
                HasSubstr("shard_00000.safetensors: damaged: bytes 0 to 1048575"));
    EXPECT_THAT(resumed.notes[2], HasSubstr("step_00000002: step 2"));

    // They are out of the way, and not lost.
    train::Checkpointing saving(run, resumed);
    EXPECT_TRUE(std::filesystem::exists(checkpoints / "step_00000004.damaged"));
    EXPECT_EQ(checkpoint::step_folders(checkpoints).size(), 1u);

    std::filesystem::remove(checkpoints / "step_00000002/complete.json");
    EXPECT_THAT(testing::message_of([&] { train::resume(run); }),
                HasSubstr("none of 1 checkpoints is usable"));
  });
}

TEST(Resume, RefusesAnotherModelAndAFolderInUse) {
  const SharedFolder folder;
  on_mesh({}, [&](const mesh::DeviceMesh& mesh) {
    auto job = job_of(folder, "replicate", {});
    auto run = train::assemble(job, mesh);
    train::Checkpointing saving(run, {});
    train_from(run, {}, kCut, &saving);

    auto other = job;
    other.checkpoint.resume = "auto";
    other.model.ffn_dim = 96;
    auto wider = train::assemble(other, mesh);
    EXPECT_THAT(testing::message_of([&] { train::resume(wider); }),
                HasSubstr("of another model: 'model.layers.0.mlp.gate_proj.weight': expected shape "
                          "[96, 64], got ["));
    other = job;
    other.checkpoint.resume = "auto";
    other.optimizer.type = optim::OptimizerType::sgd;
    auto plain = train::assemble(other, mesh);
    EXPECT_THAT(testing::message_of([&] { train::resume(plain); }),
                HasSubstr("with other states of the optimizer: optimizer.type is sgd, but adamw "
                          "where the checkpoint was saved; set it as it was, or "));
    auto in_blocks = job;
    in_blocks.checkpoint.resume = "auto";
    in_blocks.precision.optimizer_states = optim::StateType::fp8_fp16;
    auto narrow = train::assemble(in_blocks, mesh);
    EXPECT_THAT(testing::message_of([&] { train::resume(narrow); }),
                HasSubstr("precision.optimizer_states is fp8+fp16, but fp32 where "));
    other.checkpoint.strict = false;
    auto lenient = train::assemble(other, mesh);
    EXPECT_EQ(train::resume(lenient).counts.step, kCut);

    EXPECT_THAT(testing::message_of([&] { train::Checkpointing second(lenient, {}); }),
                HasSubstr("another run writes here (host "));
  });
  on_mesh({}, [&](const mesh::DeviceMesh& mesh) {
    auto job = job_of(folder, "replicate", {});
    auto run = train::assemble(job, mesh);
    EXPECT_THAT(
        testing::message_of([&] { train::Checkpointing saving(run, {}); }),
        HasSubstr("holds checkpoints of an earlier run (to step 3); set checkpoint.resume"));
    job.checkpoint.overwrite = true;
    auto fresh = train::assemble(job, mesh);
    train::Checkpointing saving(fresh, {});
    EXPECT_TRUE(checkpoint::step_folders(folder.path() / "checkpoints").empty());
  });
}

/// A run of `job` that saves at its end; its folder's one checkpoint.
std::filesystem::path saved(const config::RunConfig& job, const mesh::DeviceMesh& mesh,
                            std::optional<double> validation_loss = {}) {
  auto run = train::assemble(job, mesh);
  train::Checkpointing saving(run, train::resume(run));
  train::Counts counts;
  while (counts.step < job.train.steps) {
    train::train_step(run, counts.step);
    counts = {counts.step + 1, counts.samples_seen + job.train.global_batch, 0};
    saving.after_step(counts, validation_loss, {});
  }
  saving.finish();
  return train::checkpoint_folder(job) / fmt::format("step_{:08}", job.train.steps);
}

config::RunConfig short_job(const std::filesystem::path& run_dir) {
  auto job = parity::recorded_job(/*seq_len=*/64, /*global_batch=*/4);
  job.model.preset = "micro";
  job.train.steps = 2;
  job.train.run_dir = run_dir;
  job.checkpoint.every = 2;
  return job;
}

/// What resuming says, or the error.
std::string said(config::RunConfig job, const mesh::DeviceMesh& mesh,
                 const std::string& wish = "auto") {
  job.checkpoint.resume = wish;
  auto run = train::assemble(job, mesh);
  std::string text;
  const auto line = testing::message_of([&] {
    for (const auto& note : train::resume(run).notes) text += note + '\n';
  });
  return line == "no error" ? text : line;
}

/// Rewrites index and marker of a checkpoint: what it says is another, and nothing is damaged.
void rewrite(const std::filesystem::path& path,
             const std::function<void(nlohmann::json&)>& change) {
  auto index = nlohmann::json::parse(read_file(path / checkpoint::kIndexFile));
  change(index);
  write_file(path / checkpoint::kIndexFile, index.dump());
  const auto marker = checkpoint::read_marker(path);
  write_file(path / checkpoint::kMarkerFile,
             checkpoint::format_marker(
                 {.step = marker.step, .index_checksum = checkpoint::checksum(index.dump())}));
}

TEST(Resume, AModelThatComputesSomethingElseIsRefusedKeyByKey) {
  const SharedFolder folder;
  on_mesh({}, [&](const mesh::DeviceMesh& mesh) {
    auto job = short_job(folder.path());
    const auto path = saved(job, mesh);
    rewrite(path, [](nlohmann::json& index) {
      index["model"]["rope_theta"] = 5000.0;
      index["model"]["rms_norm_eps"] = 0.5;
      index["model"]["max_position_embeddings"] = 4096;
    });
    const auto line = said(job, mesh);
    EXPECT_THAT(line, HasSubstr("of another model: "));
    EXPECT_THAT(line, HasSubstr("config.json: rope_theta is 10000.0, but 5000.0 where the "));
    EXPECT_THAT(line, HasSubstr("config.json: rms_norm_eps is "));
    job.checkpoint.strict = false;
    const auto notes = said(job, mesh);
    EXPECT_THAT(notes, HasSubstr("config.json: rope_theta is 10000.0, but 5000.0 where the "));
    EXPECT_THAT(notes, HasSubstr("max_position_embeddings is "));
    EXPECT_THAT(notes, HasSubstr("resumed from "));
  });
}

TEST(Resume, WhatIsTrainedOtherwiseIsSaidKeyByKey) {
  const SharedFolder folder;
  on_mesh({}, [&](const mesh::DeviceMesh& mesh) {
    auto job = short_job(folder.path());
    saved(job, mesh);
    EXPECT_THAT(said(job, mesh), ::testing::StartsWith("resumed from "));
    job.data.seq_len = 32;
    job.train.global_batch = 2;
    job.optimizer.beta2 = 0.5;
    job.train.steps = 9;
    const auto notes = said(job, mesh);
    for (const char* note : {"data.seq_len is 32, but 64 where the checkpoint was saved\n",
                             "train.global_batch is 2, but 4 where", "optimizer.beta2 is 0.5, but ",
                             "train.steps is 9, but 2 where"}) {
      EXPECT_THAT(notes, HasSubstr(note));
    }
    EXPECT_EQ(notes.find("run_dir"), std::string::npos) << notes;
  });
}

TEST(Resume, OtherContentOfTheDataIsSaid) {
  const SharedFolder folder;
  on_mesh({}, [&](const mesh::DeviceMesh& mesh) {
    auto job = short_job(folder.path());
    auto tokens = std::string(20'000, 'a');
    const auto data = folder.path() / "own.txt";
    write_file(data, tokens);
    job.data.train = {data.string()};
    saved(job, mesh);
    EXPECT_THAT(said(job, mesh), ::testing::StartsWith("resumed from "));
    write_file(data, std::string(20'000, 'b'));
    EXPECT_THAT(said(job, mesh), HasSubstr("data.train: 20000 tokens, 20000 where the checkpoint "
                                           "was saved: not the same content"));
  });
}

TEST(Resume, ACheckpointOfAnotherRunInTheFolderIsRefusedUnlessItIsNamed) {
  const SharedFolder folder;
  on_mesh({}, [&](const mesh::DeviceMesh& mesh) {
    const auto job = short_job(folder.path() / "a"), other = short_job(folder.path() / "b");
    const auto own = saved(job, mesh);
    auto longer = other;
    longer.train.steps = 4;
    const auto foreign = saved(longer, mesh);
    const auto copy = train::checkpoint_folder(job) / foreign.filename();
    std::filesystem::copy(foreign, copy, std::filesystem::copy_options::recursive);
    EXPECT_THAT(said(job, mesh), HasSubstr("step_00000004: of another run (id "));
    EXPECT_THAT(said(job, mesh, copy), HasSubstr("resumed from "));
    std::filesystem::remove_all(copy);
    EXPECT_THAT(said(job, mesh), HasSubstr("step_00000002: step 2"));

    // Under another name it is no checkpoint of its step.
    std::filesystem::rename(own, own.parent_path() / "step_00000007");
    EXPECT_THAT(said(job, mesh), HasSubstr("named for step 7, but it is a checkpoint of step 2"));
  });
}

TEST(Resume, AnotherRunsFolderIsReadAndNotChanged) {
  const SharedFolder folder;
  on_mesh({}, [&](const mesh::DeviceMesh& mesh) {
    auto job = short_job(folder.path() / "a");
    auto longer = job;
    longer.train.steps = 4;
    const auto newest = saved(longer, mesh);
    std::filesystem::remove(newest / checkpoint::kMarkerFile);
    auto fresh = short_job(folder.path() / "b");
    fresh.checkpoint.resume = newest.parent_path();
    fresh.checkpoint.overwrite = true;
    auto run = train::assemble(fresh, mesh);
    const auto resumed = train::resume(run);
    EXPECT_EQ(resumed.damaged.size(), 1u);
    train::Checkpointing saving(run, resumed);
    EXPECT_TRUE(std::filesystem::exists(newest));
  });
}

TEST(Resume, WhatMayBeWholeIsNotPassedOver) {
  const SharedFolder folder;
  on_mesh({}, [&](const mesh::DeviceMesh& mesh) {
    auto job = short_job(folder.path());
    job.train.steps = 4;
    const auto newest = saved(job, mesh);
    rewrite(newest, [](nlohmann::json& index) { index["version"] = 9; });
    EXPECT_THAT(said(job, mesh), HasSubstr("version: expected 1 or 2, got 9; read it with the "));
    rewrite(newest, [](nlohmann::json& index) { index["version"] = 1; });
    rewrite(newest, [](nlohmann::json& index) { index["state"]["samples_seen"] = -5; });
    EXPECT_THAT(said(job, mesh), HasSubstr("state.samples_seen: expected a whole number from 0"));
  });
}

TEST(Resume, OverwriteLeavesTheCheckpointThatTheRunGoesOnFrom) {
  const SharedFolder folder;
  on_mesh({}, [&](const mesh::DeviceMesh& mesh) {
    auto job = short_job(folder.path());
    const auto path = saved(job, mesh);
    // As a conversion writes it that knows no step.
    rewrite(path, [](nlohmann::json& index) { index["step"] = 0, index["state"]["step"] = 0; });
    auto marker = checkpoint::read_marker(path);
    marker.step = 0;
    write_file(path / checkpoint::kMarkerFile, checkpoint::format_marker(marker));
    const auto source = path.parent_path() / "step_00000000";
    std::filesystem::rename(path, source);
    job.checkpoint.overwrite = true;
    job.checkpoint.resume = source;
    auto run = train::assemble(job, mesh);
    train::Checkpointing saving(run, train::resume(run));
    EXPECT_TRUE(std::filesystem::exists(source / checkpoint::kMarkerFile));
  });
}

TEST(Resume, ALossThatIsNoNumberDoesNotDamageTheCheckpoint) {
  const SharedFolder folder;
  on_mesh({}, [&](const mesh::DeviceMesh& mesh) {
    const auto job = short_job(folder.path());
    saved(job, mesh, std::nan(""));
    EXPECT_THAT(said(job, mesh), HasSubstr("step_00000002: step 2"));
  });
}

TEST(Resume, ALineFeedInTheRunFolderIsAByteAsOthers) {
  const SharedFolder folder;
  on_mesh({}, [&](const mesh::DeviceMesh& mesh) {
    const auto job = short_job(folder.path() / "a\nb");
    saved(job, mesh);
    EXPECT_THAT(said(job, mesh), HasSubstr("a\nb/checkpoints/step_00000002: step 2"));
  });
}

}  // namespace
}  // namespace tessera
