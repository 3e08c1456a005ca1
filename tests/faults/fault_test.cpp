// A save killed after each of its calls, and each of its calls made to fail: what a run that
// resumes finds then. Two saves with retention, which removes as many checkpoints.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tessera/checkpoint/folder.h"
#include "tessera/data/testing.h"
#include "tests/faults/check.h"
#include "tests/faults/driver.h"
#include "tests/support/temporary_folder.h"

namespace tessera::faults {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::Ge;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int64_t kBefore[] = {1, 2}, kFirst = 3, kLast = 4, kNext = 9;

class FaultTest : public ::testing::TestWithParam<std::string> {
 protected:
  static void SetUpTestSuite() {
    // The same calls as on a disk, whose flushes would take most of the time.
    std::error_code none;
    if (fs::space("/dev/shm", none).available + 1 > uintmax_t{1} << 30) {
      ::setenv("TMPDIR", "/dev/shm", /*overwrite=*/0);
    }
    driver_ = std::make_unique<Driver>();
    base_ = std::make_unique<tessera::testing::TemporaryFolder>();
    const auto end =
        driver_->save({.folder = base_->path() / "before", .first = 1, .last = 2, .mode = "sync"});
    ASSERT_THAT(end.saved, ElementsAre(1, 2));
  }
  static void TearDownTestSuite() {
    driver_.reset();
    base_.reset();
  }

  /// A folder with the checkpoints of steps 1 and 2. Links will do: nobody writes to a file of a
  /// checkpoint again.
  static SaveJob job(const std::string& faults = "-") {
    const auto folder = base_->path() / "run";
    fs::remove_all(folder);
    fs::copy(base_->path() / "before", folder,
             fs::copy_options::recursive | fs::copy_options::create_hard_links);
    fs::remove(folder / "lock");
    return {.folder = folder, .first = kFirst, .last = kLast, .mode = GetParam(), .faults = faults};
  }

  /// The calls of a run without faults.
  static std::vector<std::string> calls() {
    auto plain = job();
    plain.log = base_->path() / "log";
    fs::remove(plain.log);
    EXPECT_THAT(driver_->save(plain).saved, ElementsAre(kFirst, kLast));
    EXPECT_THAT(check_all(plain.folder), ElementsAre(kFirst, kLast));
    return calls_in(plain.log);
  }

  /// Nothing bad counts, nothing good is lost, and the next run goes on from there.
  static void check_after(const SaveJob& job, const SaveEnd& end) {
    const auto steps = check_all(job.folder);
    const auto found = newest_whole(job.folder);
    ASSERT_TRUE(found.newest);
    EXPECT_THAT(found.refused, IsEmpty());
    EXPECT_GE(*found.newest, end.saved.empty() ? kBefore[1] : *end.saved.rbegin());
    {
      const checkpoint::FolderLock lock(job.folder);
      checkpoint::clean_up(job.folder);
    }
    const auto cleaned = check_all(job.folder);
    EXPECT_TRUE(std::ranges::includes(cleaned, steps));
    check_no_leftovers(job.folder, cleaned);
  }

  static void check_next_save(const SaveJob& job) {
    const auto newest = newest_whole(job.folder).newest;
    const auto end =
        driver_->save({.folder = job.folder, .first = kNext, .last = kNext, .mode = job.mode});
    EXPECT_THAT(end.saved, ElementsAre(kNext)) << ::testing::PrintToString(end.refusals);
    // One that was complete but for its name may have got it.
    const auto steps = check_all(job.folder);
    EXPECT_THAT(steps, ElementsAre(Ge(*newest), kNext));
    check_no_leftovers(job.folder, steps);
  }

  /// Steps from one tested call to the next: all calls of the plain mode are tested, and some of
  /// the other, whose calls are the same but for the thread.
  static size_t stride() { return GetParam() == "sync" ? 1 : 3; }

  static std::unique_ptr<Driver> driver_;
  static std::unique_ptr<tessera::testing::TemporaryFolder> base_;
};

std::unique_ptr<Driver> FaultTest::driver_;
std::unique_ptr<tessera::testing::TemporaryFolder> FaultTest::base_;

TEST_P(FaultTest, KilledAfterEveryCall) {
  const auto all = calls();
  ASSERT_GE(all.size(), 40U);
  for (size_t at = 1; at <= all.size(); at += stride()) {
    SCOPED_TRACE(fmt::format("killed after call {}: {}", at, all[at - 1]));
    auto killed = job(fmt::format("kill@{}", at));
    const auto end = driver_->save(killed);
    EXPECT_TRUE(end.killed) << ::testing::PrintToString(end.refusals);
    if (at % 8 == 0) {
      check_next_save(killed);  // whose first act is to clean up
    } else {
      check_after(killed, end);
    }
    if (HasFailure()) break;
  }
  RecordProperty("points", static_cast<int>(all.size() / stride()));
}

TEST_P(FaultTest, KilledInTheMiddleOfAWrite) {
  const auto all = calls();
  for (size_t at = 1; at <= all.size(); ++at) {
    if (!all[at - 1].starts_with("write ") && !all[at - 1].starts_with("pwrite ")) continue;
    SCOPED_TRACE(fmt::format("killed within call {}: {}", at, all[at - 1]));
    const auto killed = job(fmt::format("torn@{}", at));
    const auto end = driver_->save(killed);
    EXPECT_TRUE(end.killed);
    check_after(killed, end);
  }
}

// The disk is full, or broken: one line, no checkpoint of that step, and the next save works.
TEST_P(FaultTest, EveryCallFails) {
  const auto all = calls();
  int refused = 0;
  for (size_t at = 1; at <= all.size(); at += stride()) {
    const auto fault = fmt::format("{}@{}", at % 2 == 0 ? "enospc" : "eio", at);
    SCOPED_TRACE(fault + ": " + all[at - 1]);
    const auto failing = job(fault);
    const auto end = driver_->save(failing);
    EXPECT_FALSE(end.killed);
    refused += end.refusals.empty() ? 0 : 1;
    EXPECT_LE(end.refusals.size(), 1U);
    for (const auto& line : end.refusals) {
      EXPECT_THAT(line, HasSubstr(failing.folder.string()));
      EXPECT_THAT(line, HasSubstr(at % 2 == 0 ? "No space left on device" : "Input/output error"));
    }
    check_after(failing, end);
    if (end.exit_code == 0 && !end.saved.contains(kLast)) {
      EXPECT_TRUE(end.saved.contains(kFirst)) << "a failed save, and the one after it failed too";
    }
    if (HasFailure()) break;
  }
  EXPECT_GE(refused, 30 / static_cast<int>(stride()));
}

// The removal of what a failed save left is itself interrupted.
TEST_P(FaultTest, KilledWhileAFailedSaveIsRemoved) {
  const auto all = calls();
  for (size_t at = 1; at <= all.size() / 2 + 2; ++at) {  // the first save
    if (all[at - 1].find("complete.json") == std::string::npos &&
        !all[at - 1].starts_with("rename ")) {
      continue;
    }
    for (size_t after = 1; after <= 3; after += stride()) {
      const auto faults = fmt::format("eio@{},kill@{}", at, at + after);
      SCOPED_TRACE(faults + ": " + all[at - 1]);
      const auto killed = job(faults);
      const auto end = driver_->save(killed);
      check_after(killed, end);
    }
    if (HasFailure()) break;
  }
}

TEST_P(FaultTest, ShortWritesAreContinued) {
  const auto shortened = job("short");
  const auto end = driver_->save(shortened);
  EXPECT_THAT(end.saved, ElementsAre(kFirst, kLast)) << ::testing::PrintToString(end.refusals);
  EXPECT_THAT(check_all(shortened.folder), ElementsAre(kFirst, kLast));
}

INSTANTIATE_TEST_SUITE_P(Modes, FaultTest, ::testing::Values("sync", "async"),
                         [](const auto& test) { return test.param; });

using FlushTest = FaultTest;

// A machine that loses power keeps what was flushed, and nothing else is sure. So nothing is
// renamed to a name that counts before it and all that it vouches for were flushed.
TEST_P(FlushTest, NothingCountsBeforeItIsFlushed) {
  std::map<std::string, std::string> unflushed;  // path -> the call that changed it
  int renames = 0;
  for (const auto& call : calls()) {
    const auto space = call.find(' '), second = call.find(' ', space + 1);
    const auto name = call.substr(0, space), path = call.substr(space + 1, second - space - 1);
    const auto folder = fs::path(path).parent_path().string();
    if (name == "fsync") unflushed.erase(path);
    if (name == "write" || name == "pwrite" || name == "ftruncate") unflushed[path] = call;
    if (name == "open" || name == "mkdir" || name == "unlink") unflushed[folder] = call;
    if (name != "rename") continue;
    const auto to = call.substr(second + 1);
    const bool marks = to.ends_with("/complete.json");
    for (const auto& [changed, by] : unflushed) {
      const bool vouched = changed.starts_with(marks ? folder : path) ||
                           (to.ends_with(".deleting") && changed == folder);
      // The new marker's own entry in the folder is flushed after it.
      EXPECT_FALSE(vouched && !(marks && changed == folder)) << call << " before " << by;
    }
    unflushed[fs::path(to).parent_path().string()] = call;
    ++renames;
  }
  EXPECT_GE(renames, 6);
}

INSTANTIATE_TEST_SUITE_P(Modes, FlushTest, ::testing::Values("sync"));

}  // namespace
}  // namespace tessera::faults
