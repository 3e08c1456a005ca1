// Training on several sources by weight, and for epochs: the same samples on any number of ranks and
// after a resume.
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cctype>
#include <filesystem>
#include <map>

#include "tessera/base/file.h"
#include "tessera/checkpoint/folder.h"
#include "tessera/train/checkpointing.h"
#include "tests/parity/fixture.h"
#include "tests/support/shared_folder.h"
#include "tests/support/train_from.h"

namespace tessera::parity {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

constexpr int64_t kSteps = 6, kCut = 3, kBatch = 12;

/// Three texts of different letters: 'a' .., 'A' .., '0' .. The parent writes them: call it before ranks start.
config::RunConfig mixed_job(const SharedFolder& folder) {
  config::RunConfig job;
  job.model.preset = "micro";
  for (const auto& [name, first, letters] :
       {std::tuple{"lower.txt", 'a', 26}, {"upper.txt", 'A', 26}, {"digits.txt", '0', 10}}) {
    const auto path = (folder.path() / name).string();
    std::string text;
    for (int i = 0; i < 16 * letters + 1; ++i)
      text += static_cast<char>(first + i * i / 7 % letters);
    if (!is_there(path)) write_file(path, text);
    job.data.train.push_back(path);
  }
  job.data.weights = {3, 2, 1};
  job.data.validation_fraction = 0;
  job.data.seq_len = 16;
  job.optimizer.eps = 1e-5;
  job.train.steps = kSteps;
  job.train.global_batch = kBatch;
  job.train.run_dir = folder.path() / "run";
  job.checkpoint.every = kCut;
  return job;
}

/// Which source each row of a step is of.
std::map<char, int> sources_of(const train::Run& run, int64_t step) {
  std::map<char, int> count;
  const auto rows = run.train_loader.batch(step, 0, kBatch).inputs;
  for (int64_t row = 0; row < kBatch; ++row) {
    const auto byte = static_cast<int>(rows[row][0].item<int64_t>());
    ++count[std::islower(byte) ? 'a' : std::isupper(byte) ? 'A' : '0'];
  }
  return count;
}

TEST(MixtureParity, EveryStepHasTheSharesOnAnyNumberOfRanksAndAfterAResume) {
  const SharedFolder folder;
  const auto base = mixed_job(folder);
  for (const int ranks : {1, 2, 3}) {
    on_mesh({.shape = {.dp_shard = ranks}}, [&](const mesh::DeviceMesh& mesh) {
      auto job = base;
      job.train.run_dir = folder.path() / fmt::format("run_{}", ranks);
      job.parallel.num_ranks = ranks;
      job.parallel.placement = parallel::Placement::full_shard;
      auto whole = train::assemble(job, mesh);
      for (int64_t step = 0; step < kSteps; ++step) {
        EXPECT_EQ(sources_of(whole, step), (std::map<char, int>{{'a', 6}, {'A', 4}, {'0', 2}}));
      }
      train::Checkpointing saving(whole, {});
      const auto losses = train_from(whole, {}, whole.num_steps, &saving);
      if (mesh.rank() == 0) {
        checkpoint::remove_checkpoint(fs::path(job.train.run_dir) / "checkpoints/step_00000006");
        const auto alone = folder.path() / "losses";  // of one rank, which is the first
        if (ranks == 1) write_file(alone, nlohmann::json(losses).dump());
        const auto expected = nlohmann::json::parse(read_file(alone)).get<std::vector<double>>();
        for (size_t i = 0; i < losses.size(); ++i) EXPECT_NEAR(losses[i] / expected[i], 1, 1e-5);
      }
      mesh.world().barrier();
      job.checkpoint.resume = "auto";
      auto resumed = train::assemble(job, mesh);
      EXPECT_EQ(train_from(resumed, train::resume(resumed).counts, resumed.num_steps),
                std::vector<double>(losses.begin() + kCut, losses.end()));
    });
  }
}

TEST(MixtureParity, OtherWeightsAreSaidAtAResume) {
  const SharedFolder folder;
  on_mesh({}, [&](const mesh::DeviceMesh& mesh) {
    auto job = mixed_job(folder);
    auto run = train::assemble(job, mesh);
    EXPECT_EQ(run.data_notes.size(), 3U);
    EXPECT_THAT(run.data_notes[2], HasSubstr("digits.txt: 161 tokens, 10 rows"));
    train::Checkpointing saving(run, {});
    train_from(run, {}, run.num_steps, &saving);
    job.checkpoint.resume = "auto";
    job.data.weights = {1, 1, 1};
    auto resumed = train::assemble(job, mesh);
    const auto notes = fmt::format("{}", fmt::join(train::resume(resumed).notes, "\n"));
    EXPECT_THAT(notes, HasSubstr("data.weights is [1, 1, 1], but [3, 2, 1] where the checkpoint"));
    EXPECT_THAT(notes, HasSubstr("not the same content"));
  });
}

TEST(MixtureParity, EachSourceHoldsOutItsPart) {
  const SharedFolder folder;
  on_mesh({}, [&](const mesh::DeviceMesh& mesh) {
    auto job = mixed_job(folder);
    job.data.validation_fraction = 0.1;
    const auto run = train::assemble(job, mesh);
    ASSERT_TRUE(run.validation_loader);
    EXPECT_EQ(run.validation_loader->data().sources().size(), 1U);
    EXPECT_GE(run.validation_loader->data().size(), 5) << "of each source";
    job.data.validation = {job.data.train[0]};
    job.data.validation_fraction = 0.01;
    EXPECT_EQ(train::assemble(job, mesh).validation_loader->data().size(), 26) << "read once";
  });
}

/// 26 + 26 + 10 rows: two epochs are 124 rows, 11 steps of 12.
config::RunConfig job_of_epochs(const SharedFolder& folder) {
  auto job = mixed_job(folder);
  job.train.steps = config::TrainSection().steps;
  job.train.epochs = 2;
  return job;
}

TEST(Epochs, AreStepsKnownBeforeTheFirst) {
  const SharedFolder folder;
  on_mesh({}, [&](const mesh::DeviceMesh& mesh) {
    auto job = job_of_epochs(folder);
    EXPECT_EQ(train::assemble(job, mesh).num_steps, 11);
    EXPECT_EQ(train::assemble(job, mesh).learning_rate.total_steps, 11);
    job.data.weights.clear();
    job.train.epochs = 0.5;
    EXPECT_EQ(train::assemble(job, mesh).num_steps, 3);
    job.schedule.warmup_steps = 4;
    EXPECT_THROW(train::assemble(job, mesh), UserError);
    job.schedule.warmup_steps = 3;
    EXPECT_EQ(train::assemble(job, mesh).num_steps, 3);
  });
}

TEST(Epochs, AResumeDoesNotChangeTheCountSilently) {
  const SharedFolder folder;
  on_mesh({}, [&](const mesh::DeviceMesh& mesh) {
    auto job = job_of_epochs(folder);
    job.checkpoint.every = 5;
    job.checkpoint.at_end = false;
    auto run = train::assemble(job, mesh);
    train::Checkpointing saving(run, {});
    const auto losses = train_from(run, {}, run.num_steps, &saving);
    EXPECT_EQ(losses.size(), 11U);
    checkpoint::remove_checkpoint(folder.path() / "run/checkpoints/step_00000010");

    job.checkpoint.resume = "auto";
    auto resumed = train::assemble(job, mesh);
    const auto from = train::resume(resumed);
    EXPECT_EQ(resumed.num_steps, 11);
    EXPECT_EQ(fmt::format("{}", fmt::join(from.notes, "\n")).find("comes to"), std::string::npos);
    EXPECT_EQ(train_from(resumed, from.counts, resumed.num_steps),
              std::vector<double>(losses.begin() + 5, losses.end()));

    // 124 - 5 * 12 samples are left, which are 11 steps of 6.
    job.train.global_batch = 6;
    auto smaller = train::assemble(job, mesh);
    const auto notes = fmt::format("{}", fmt::join(train::resume(smaller).notes, "\n"));
    EXPECT_EQ(smaller.num_steps, 16);
    EXPECT_EQ(smaller.learning_rate.total_steps, 16);
    EXPECT_THAT(notes, HasSubstr("train.epochs 2 comes to 16 steps, to 11 where the checkpoint "));
  });
}

}  // namespace
}  // namespace tessera::parity
