#include "tessera/checkpoint/saver.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <numeric>

#include "tessera/base/testing.h"
#include "tessera/checkpoint/tensors.h"
#include "tests/support/ranks.h"
#include "tests/support/shared_folder.h"

namespace tessera::checkpoint {
namespace {

using tessera::testing::message_of;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::MatchesRegex;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::StartsWith;

struct Whole {
  std::string name;
  std::vector<int64_t> shape;
  torch::Dtype dtype;
};

// Odd sizes; more than one part of 8 MiB.
const std::vector<Whole> kState = {{"embed.weight", {2003, 701}, torch::kFloat32},
                                   {"norm.weight", {701}, torch::kBFloat16},
                                   {"optimizer/exp_avg/embed.weight", {2003, 701}, torch::kFloat32},
                                   {"steps", {1}, torch::kInt64}};

/// A tensor's values at a step, [elements].
torch::Tensor values_of(const Whole& whole, int64_t step) {
  const auto count =
      std::accumulate(whole.shape.begin(), whole.shape.end(), int64_t{1}, std::multiplies<>());
  const auto numbers = at::arange(count, torch::kFloat64);
  const double shift = static_cast<double>(step) + static_cast<double>(whole.name.size());
  return ((numbers * 0.377 + shift).sin() * 1000).to(whole.dtype);
}

/// Elements where part `which` of `num_parts` begins: later parts are larger.
int64_t cut_at(int64_t elements, int which, int num_parts) {
  const int64_t triangle = num_parts * (num_parts + 1) / 2;
  return elements * (which * (which + 1) / 2) / triangle;
}

/// Part `which` of `num_parts` of every tensor, with the values of a step.
std::vector<HeldExtent> uneven_parts(int64_t step, int which, int num_parts) {
  std::vector<HeldExtent> parts;
  for (const auto& whole : kState) {
    const auto values = values_of(whole, step);
    const int64_t begin = cut_at(values.numel(), which, num_parts);
    const int64_t end = cut_at(values.numel(), which + 1, num_parts);
    parts.push_back(
        held_extent(whole.name, whole.shape, begin, values.narrow(0, begin, end - begin).clone()));
  }
  return parts;
}

std::vector<HeldExtent> replicated(int64_t step, int replica, int replicas) {
  auto parts = uneven_parts(step, 0, 1);
  for (auto& part : parts) {
    part.replicas = replicas;
    part.replica = replica;
  }
  return parts;
}

/// Reads a state as part `which` of `num_parts` and compares.
void expect_read(const std::filesystem::path& folder, int64_t step, int which, int num_parts) {
  const auto expected = uneven_parts(step, which, num_parts);
  auto read = expected;
  for (auto& part : read) part.values = at::zeros_like(part.values);
  load_extents(Checkpoint(folder), read);
  for (size_t i = 0; i < read.size(); ++i) {
    EXPECT_TRUE(at::equal(read[i].values, expected[i].values)) << read[i].extent.name;
  }
}

int64_t state_bytes() {
  int64_t bytes = 0;
  for (const auto& part : uneven_parts(0, 0, 1)) bytes += part.extent.num_bytes();
  return bytes;
}

std::filesystem::path step_path(const SharedFolder& folder, int64_t step) {
  return folder.path() / fmt::format("step_{:08}", step);
}

std::vector<std::string> names_in(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    names.push_back(entry.path().filename());
  }
  std::ranges::sort(names);
  return names;
}

/// The one report of a save that has ended.
SaveReport only_report(Saver& saver) {
  saver.finish();
  const auto reports = saver.take_reports();
  EXPECT_THAT(reports, SizeIs(1));
  return reports.empty() ? SaveReport{} : reports[0];
}

class SaverTest : public RankTest {};

TEST_P(SaverTest, OtherRanksReadTheSameBits) {
  const SharedFolder folder;
  const int n = GetParam();
  for (const bool async : {false, true}) {
    on_ranks(n, [&](const mesh::Axis& axis) {
      const int64_t step = async ? 2 : 1;
      Saver saver(axis, uneven_parts(step, axis.rank(), n),
                  {.directory = folder.path(), .async = async});
      saver.save({.step = step, .state = {{"who", axis.rank()}}});
      EXPECT_EQ(only_report(saver).error, "");
      axis.barrier();
      const auto path = step_path(folder, step);
      EXPECT_EQ(Checkpoint(path).index().state["who"], 0);
      expect_read(path, step, axis.rank(), n + 1);
      if (axis.rank() == n - 1) expect_read(path, step, n, n + 1);
      if (axis.rank() == 0) expect_read(path, step, 0, 1);
    });
  }
}

TEST_P(SaverTest, ReplicasShareTheWorkAndWriteNothingTwice) {
  const SharedFolder folder;
  const int n = GetParam();
  on_ranks(n, [&](const mesh::Axis& axis) {
    Saver saver(axis, replicated(1, axis.rank(), n), {.directory = folder.path()});
    saver.save({.step = 1});
    EXPECT_EQ(only_report(saver).error, "");
    axis.barrier();
    const Checkpoint stored(step_path(folder, 1));
    ASSERT_THAT(stored.index().files, SizeIs(n));
    int64_t sum = 0;
    for (const auto& file : stored.index().files) {
      sum += file.num_bytes;
      EXPECT_NEAR(static_cast<double>(file.num_bytes), static_cast<double>(state_bytes()) / n,
                  0.01 * static_cast<double>(state_bytes()) / n + kPageBytes);
    }
    EXPECT_LE(sum, state_bytes() + n * kPageBytes);  // and a header each
    expect_read(stored.path(), 1, axis.rank(), n);
  });
}

TEST_P(SaverTest, ARankWhoseWriteFailsIsNamedToAll) {
  const SharedFolder folder;
  const int n = GetParam();
  on_ranks(n, [&](const mesh::Axis& axis) {
    Saver saver(axis, uneven_parts(1, axis.rank(), n), {.directory = folder.path()});
    saver.save({.step = 1});
    EXPECT_EQ(only_report(saver).error, "");

    rlimit usual{};
    ::getrlimit(RLIMIT_FSIZE, &usual);
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit small{.rlim_cur = 1 << 16, .rlim_max = usual.rlim_max};
    if (axis.rank() == n - 1) ::setrlimit(RLIMIT_FSIZE, &small);
    saver.save({.step = 2});
    const auto error = only_report(saver).error;
    ::setrlimit(RLIMIT_FSIZE, &usual);
    EXPECT_THAT(error, HasSubstr(fmt::format("shard_{:05}.safetensors: cannot be written: File "
                                             "too large",
                                             n - 1)));
    EXPECT_THAT(error, n > 1 ? StartsWith(fmt::format("rank {}: ", n - 1))
                             : StartsWith(folder.path().string()));
    EXPECT_EQ(axis.all_gather_bytes(error),
              std::vector<std::string>(static_cast<size_t>(n), error));
    axis.barrier();
    EXPECT_THAT(names_in(folder.path()), ElementsAre("lock", "step_00000001"));
    axis.barrier();

    saver.save({.step = 3});  // training went on, and the disk has room again
    EXPECT_EQ(only_report(saver).error, "");
    axis.barrier();
    EXPECT_THAT(names_in(folder.path()), ElementsAre("lock", "step_00000001", "step_00000003"));
    expect_read(step_path(folder, 3), 1, axis.rank(), n);
  });
}

/// Columns of the matrices (of the others: elements) that part `which` of `num_parts` holds.
std::vector<HeldExtent> columns(int64_t step, int which, int num_parts) {
  std::vector<HeldExtent> parts;
  for (const auto& whole : kState) {
    const int64_t size = whole.shape.back();
    const int64_t from = cut_at(size, which, num_parts), to = cut_at(size, which + 1, num_parts);
    const auto values = values_of(whole, step).view({-1, size}).slice(1, from, to);
    parts.push_back(held_extent(whole.name, whole.shape, 0, values.reshape({-1}).clone(),
                                {from, to - from, size}));
  }
  return parts;
}

TEST_P(SaverTest, ColumnsComeBackAsElementsAndElementsAsColumns) {
  const SharedFolder folder;
  const int n = GetParam();
  on_ranks(2 * n, [&](const mesh::Axis& axis) {
    // Two replicas of each part: tensor parallelism under data parallelism.
    auto parts = columns(1, axis.rank() / 2, n);
    for (auto& part : parts) {
      part.replicas = 2;
      part.replica = axis.rank() % 2;
    }
    Saver saver(axis, parts, {.directory = folder.path()});
    saver.save({.step = 1});
    EXPECT_EQ(only_report(saver).error, "");
    axis.barrier();
    expect_read(step_path(folder, 1), 1, axis.rank(), 2 * n);
    const auto expected = columns(1, axis.rank(), 2 * n);
    auto read = expected;
    for (auto& part : read) part.values = at::zeros_like(part.values, torch::kFloat64);
    load_extents(Checkpoint(step_path(folder, 1)), read);
    for (size_t i = 0; i < read.size(); ++i) {
      EXPECT_TRUE(at::equal(read[i].values, expected[i].values.to(torch::kFloat64)))
          << read[i].extent.name;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, SaverTest, ::testing::Values(1, 2, 3, 5));

TEST(Saver, ValuesMayChangeOnceSaveHasReturned) {
  const SharedFolder folder;
  on_ranks(2, [&](const mesh::Axis& axis) {
    const auto parts = uneven_parts(1, axis.rank(), 2);
    Saver saver(axis, parts, {.directory = folder.path()});
    saver.save({.step = 1});
    for (const auto& part : parts) part.values.fill_(-1);
    EXPECT_EQ(only_report(saver).error, "");
    axis.barrier();
    expect_read(step_path(folder, 1), 1, axis.rank(), 2);
  });
}

TEST(Saver, ASaveWaitsForTheOneBefore) {
  const SharedFolder folder;
  on_ranks(2, [&](const mesh::Axis& axis) {
    Saver saver(axis, uneven_parts(1, axis.rank(), 2), {.directory = folder.path()});
    saver.save({.step = 1});
    saver.save({.step = 2});
    EXPECT_TRUE(std::filesystem::exists(step_path(folder, 1) / kMarkerFile));
    saver.finish();
    const auto reports = saver.take_reports();
    ASSERT_THAT(reports, SizeIs(2));
    EXPECT_EQ(reports[0].step, 1);
    EXPECT_EQ(reports[1].step, 2);
    for (const auto& report : reports) {
      EXPECT_EQ(report.error, "");
      EXPECT_GT(report.stall_seconds, 0);
      EXPECT_GE(report.total_seconds, report.wait_seconds + report.stall_seconds);
    }
    EXPECT_GT(reports[1].wait_seconds, reports[0].wait_seconds);
    EXPECT_GT(reports[1].wait_seconds, 0.5 * (reports[0].total_seconds - reports[0].stall_seconds -
                                              reports[0].wait_seconds));
  });
}

TEST(Saver, OldOnesGoOnceTheNewOneIsComplete) {
  const SharedFolder folder;
  on_ranks(2, [&](const mesh::Axis& axis) {
    Saver saver(axis, uneven_parts(1, axis.rank(), 2),
                {.directory = folder.path(),
                 .retention = {.keep_last = 1, .keep_every = 4, .keep_best = 1}});
    const auto save = [&](int64_t step, double loss) {
      saver.save({.step = step, .validation_loss = loss});
      const auto report = only_report(saver);
      EXPECT_EQ(report.error, "");
      return report.removed;
    };
    const bool first = axis.rank() == 0;
    EXPECT_THAT(save(1, 2.0), IsEmpty());
    EXPECT_EQ(save(2, 3.0), std::vector<int64_t>{});  // 1 is the best
    EXPECT_EQ(save(4, 1.0), first ? (std::vector<int64_t>{1, 2}) : std::vector<int64_t>{});
    EXPECT_EQ(save(5, 0.5), std::vector<int64_t>{});
    EXPECT_EQ(save(6, 0.7), std::vector<int64_t>{});
    EXPECT_EQ(save(7, 0.6), first ? std::vector<int64_t>{6} : std::vector<int64_t>{});
    axis.barrier();
    EXPECT_THAT(names_in(folder.path()),
                ElementsAre("lock", "step_00000004", "step_00000005", "step_00000007"));
  });
}

TEST(Saver, ALostPeerEndsTheSaveLongBeforeTheDeadline) {
  const SharedFolder folder;
  on_mesh({.shape = {.dp_replicate = 2}, .killed = {1}}, [&](const mesh::DeviceMesh& mesh) {
    const auto& axis = mesh.axis("dp_replicate");
    Saver saver(axis, uneven_parts(1, axis.rank(), 2), {.directory = folder.path()});
    saver.save({.step = 1});
    saver.finish();
    axis.barrier();
    if (axis.rank() == 1) ::raise(SIGKILL);
    const auto start = std::chrono::steady_clock::now();
    std::string message = "no error";
    try {
      saver.save({.step = 2});
      saver.finish();
    } catch (const c10::DistError& error) {
      message = error.what();
    }
    EXPECT_THAT(message, AllOf(StartsWith("rank 0, axis dp_replicate: "), Not(HasSubstr("\n"))));
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
    ASSERT_THAT(step_folders(folder.path()), SizeIs(1));
    expect_read(step_path(folder, 1), 1, 0, 1);
  });
}

TEST(Saver, OneRunWritesIntoAFolder) {
  const SharedFolder folder;
  on_ranks(2, [&](const mesh::Axis& axis) {
    const auto parts = uneven_parts(1, axis.rank(), 2);
    const Saver first(axis, parts, {.directory = folder.path()});
    EXPECT_THAT(message_of([&] { Saver(axis, parts, {.directory = folder.path()}); }),
                MatchesRegex(".*: another run writes here \\(host .+, process [0-9]+\\); "
                             "wait for its end, or choose another folder"));
  });
}

TEST(Saver, WhatIsReadBackMustBeWhatWasWritten) {
  const SharedFolder folder;
  const auto asset = folder.path() / "tokenizer.json";
  std::ofstream(asset) << "{}";
  on_ranks(1, [&](const mesh::Axis& axis) {
    Saver saver(axis, uneven_parts(1, 0, 1),
                {.directory = folder.path() / "run", .async = false, .assets = {asset}});
    saver.save({.step = 1});
    EXPECT_EQ(only_report(saver).error, "");
    const Checkpoint stored(folder.path() / "run/step_00000001");
    ASSERT_THAT(stored.index().files, SizeIs(2));
    EXPECT_EQ(stored.index().files[1].name, "tokenizer.json");
    stored.verify();

    std::filesystem::remove(asset);
    saver.save({.step = 2});
    EXPECT_THAT(only_report(saver).error, AllOf(StartsWith(asset.string()), Not(HasSubstr("\n"))));
    EXPECT_THAT(step_folders(folder.path() / "run"), SizeIs(1));
  });
}

/// A checkpoint of kState, by one rank.
Checkpoint saved_by_one(const SharedFolder& folder) {
  const mesh::DeviceMesh mesh;
  Saver saver(mesh.world(), uneven_parts(1, 0, 1), {.directory = folder.path(), .async = false});
  saver.save({.step = 1});
  EXPECT_EQ(only_report(saver).error, "");
  return Checkpoint(step_path(folder, 1));
}

TEST(LoadParts, ConvertsDtypesAndLeavesWhatIsNotStored) {
  const SharedFolder folder;
  const auto stored = saved_by_one(folder);
  const auto& embed = kState[0];
  const auto target = at::zeros({1000}, torch::kBFloat16), other = at::zeros({3});
  const std::vector<HeldExtent> parts{held_extent(embed.name, embed.shape, 77, target),
                                      held_extent("unknown", {3}, 0, other)};
  load_extents(stored, parts);
  EXPECT_TRUE(at::equal(target, values_of(embed, 1).narrow(0, 77, 1000).to(torch::kBFloat16)));
  EXPECT_TRUE(at::equal(other, at::zeros({3})));
}

TEST(CheckExpected, NamesTheFirstDifference) {
  const SharedFolder folder;
  const auto stored = saved_by_one(folder);
  const auto where = stored.path().string() + ": of another model";
  Expected expected;
  for (const auto& whole : kState) expected.emplace_back(whole.name, whole.shape);
  check_expected(stored, expected, /*strict=*/true);

  auto more = expected;
  more.insert(more.begin() + 1, {"head.weight", {2003, 701}});
  EXPECT_EQ(message_of([&] { check_expected(stored, more, true); }),
            where +
                ": expected a tensor 'head.weight', found none; set strict to false "
                "to go on without");
  check_expected(stored, more, /*strict=*/false);

  auto wider = expected;
  wider[0].second = {2003, 702};
  for (const bool strict : {false, true}) {
    EXPECT_EQ(message_of([&] { check_expected(stored, wider, strict); }),
              where + ": 'embed.weight': expected shape [2003, 702], got [2003, 701]");
  }

  auto fewer = expected;
  fewer.erase(fewer.begin() + 2);
  EXPECT_EQ(message_of([&] { check_expected(stored, fewer, true); }),
            where +
                " or optimizer: expected no tensor 'optimizer/exp_avg/embed.weight'; set "
                "strict to false to leave it out");
  check_expected(stored, fewer, /*strict=*/false);
}

}  // namespace
}  // namespace tessera::checkpoint
