// Two ranks save, and the calls of one of them are the last or fail.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "tessera/checkpoint/folder.h"
#include "tessera/data/testing.h"
#include "tests/faults/check.h"
#include "tests/faults/driver.h"
#include "tests/support/temporary_folder.h"

namespace tessera::faults {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

class RankFaultTest : public ::testing::TestWithParam<int> {
 protected:
  /// Saves steps first .. last; faults in rank GetParam().
  SaveEnd save(int64_t first, int64_t last, const std::string& faults) const {
    return save_on_two_ranks({.folder = folder_.path() / "run",
                              .first = first,
                              .last = last,
                              .faults = faults,
                              .log = folder_.path() / "log"},
                             GetParam());
  }

  std::vector<std::string> calls() const { return calls_in(folder_.path() / "log"); }

  std::vector<int64_t> check() const {
    const auto run = folder_.path() / "run";
    const auto steps = check_all(run);
    EXPECT_EQ(newest_whole(run).newest, steps.back());
    return steps;
  }

  tessera::testing::TemporaryFolder folder_;
};

TEST_P(RankFaultTest, KilledAtPointsOverASave) {
  ASSERT_THAT(save(1, 2, "-").saved, ElementsAre(1, 2));
  const size_t num_calls = calls().size() / 2;  // of one save
  int64_t step = 3, newest = 2;
  for (size_t at = 2; at <= num_calls; at += num_calls / 4) {
    SCOPED_TRACE(fmt::format("killed after call {}", at));
    const auto end = save(step, step, fmt::format("kill@{}", at));
    EXPECT_NE(end.exit_code, 0);
    EXPECT_GE(check().back(), newest);
    newest = check().back();
    ++step;
  }
  EXPECT_THAT(save(step, step, "-").saved, ElementsAre(step));
  EXPECT_THAT(check(), SizeIs(2));
  check_no_leftovers(folder_.path() / "run", check());
}

TEST_P(RankFaultTest, AFullDiskIsToldOnceAndTrainingGoesOn) {
  ASSERT_THAT(save(1, 1, "-").saved, ElementsAre(1));
  size_t at = 0;
  const auto all = calls();
  while (!all[at].starts_with("pwrite ") || all[at].ends_with("/lock")) ++at;
  const auto end = save(2, 3, fmt::format("enospc@{}", at + 1));
  EXPECT_EQ(end.exit_code, 0);
  EXPECT_THAT(end.saved, ElementsAre(3));
  ASSERT_THAT(end.refusals, SizeIs(2));  // a line of each rank, the same
  EXPECT_EQ(end.refusals[0], end.refusals[1]);
  EXPECT_THAT(end.refusals[0], HasSubstr(fmt::format("failed 2: rank {}: ", GetParam())));
  EXPECT_THAT(end.refusals[0], HasSubstr("No space left on device"));
  EXPECT_THAT(check(), ElementsAre(1, 3));
}

INSTANTIATE_TEST_SUITE_P(Ranks, RankFaultTest, ::testing::Values(0, 1));

}  // namespace
}  // namespace tessera::faults
