#include "tessera/report/clock.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "tessera/base/error.h"

namespace tessera::report {
namespace {

constexpr double kTick = 0.02;  // starts of processes are recorded to 10 ms, rounded

TEST(Clock, RunsFromTheStartOfTheProcess) {
  const double boot_seconds_before = boot_seconds(), before = seconds_since_process_start();
  ::usleep(50'000);
  const double after = seconds_since_process_start(), boot_after = boot_seconds();
  EXPECT_GE(before, 0);
  EXPECT_LT(before, 600);  // the limit of a test
  EXPECT_GE(after - before, 0.05);
  EXPECT_LE(after - before, boot_after - boot_seconds_before + kTick);
}

TEST(Clock, AForkedChildStartsAnew) {
  ::usleep(300'000);  // the parent is at least this old
  const double fork_time = boot_seconds();
  const pid_t child = ::fork();
  if (child == 0) {
    const double age = seconds_since_process_start();
    ::_exit(age <= boot_seconds() - fork_time + kTick ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(Clock, LaunchTimeComesFromTheLauncherElseFromTheProcess) {
  ::unsetenv(kLaunchTimeVariable);
  const double before = seconds_since_process_start(), launched = seconds_since_launch();
  EXPECT_LE(before, launched);
  EXPECT_LE(launched, seconds_since_process_start());
  ::setenv(kLaunchTimeVariable, std::to_string(boot_seconds() - 12.5).c_str(), 1);
  EXPECT_NEAR(seconds_since_launch(), 12.5, 1);
  for (const std::string wrong : {"", "soon", "1e99", "-1", "nan"}) {
    ::setenv(kLaunchTimeVariable, wrong.c_str(), 1);
    EXPECT_THROW(seconds_since_launch(), UserError) << wrong;
  }
  ::unsetenv(kLaunchTimeVariable);
}

TEST(ProcessMemory, PeakRemembersWhatWasGivenBack) {
  constexpr int64_t kSize = int64_t{64} << 20;
  const auto before = process_memory();
  {
    std::vector<char> block(kSize, 1);
    const auto during = process_memory();
    EXPECT_GE(during.current_bytes, before.current_bytes + kSize * 9 / 10);
    EXPECT_EQ(block.back(), 1);
  }
  const auto after = process_memory();
  EXPECT_GE(after.peak_bytes, before.current_bytes + kSize * 9 / 10);
  EXPECT_GE(after.peak_bytes, after.current_bytes);
}

}  // namespace
}  // namespace tessera::report
