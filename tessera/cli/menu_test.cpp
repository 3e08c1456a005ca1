#include "tessera/cli/menu.h"

#include <gmock/gmock.h>
#include <signal.h>
#include <sys/wait.h>

#include "tessera/base/error.h"
#include "tests/program/terminal.h"

namespace tessera::cli {
namespace {

using ::testing::HasSubstr;

constexpr int kRefused = 99;

/// A process that picks one of three at a terminal of its own.
class MenuTest : public ::testing::Test {
 protected:
  void start(size_t first = 0) {
    std::fflush(stdout);
    child_ = ::fork();
    if (child_ != 0) return;
    int answer = kRefused;
    try {
      const std::vector<MenuItem> items{{"replicate", "16 bytes"}, {"shard", ""}, {"both", ""}};
      answer = static_cast<int>(pick("Which?", items, first, terminal_.fd()));
    } catch (const UserError&) {
    }
    ::_exit(answer);
  }

  /// The status with which it ends: the picked item.
  int status() {
    int status = 0;
    ::waitpid(child_, &status, 0);
    EXPECT_TRUE(terminal_.reads_by_line());
    return status;
  }

  int picked_after(const std::string& keys, size_t first = 0) {
    start(first);
    terminal_.wait_for("3. both");
    terminal_.type(keys);
    return WEXITSTATUS(status());
  }

  Terminal terminal_;
  pid_t child_ = -1;
};

TEST_F(MenuTest, EnterPicksWhatIsMarked) {
  EXPECT_EQ(picked_after("\r"), 0);
  EXPECT_EQ(picked_after("\r", 2), 2);
}

TEST_F(MenuTest, ArrowsMoveTheMarkAroundTheEnds) {
  EXPECT_EQ(picked_after("\x1b[B\r"), 1);
  EXPECT_EQ(picked_after("\x1b[A\r"), 2);
  EXPECT_EQ(picked_after("\x1bOB\x1bOB\x1bOB\x1b[B\n"), 1);
  EXPECT_EQ(picked_after("jjk\r"), 1);
}

TEST_F(MenuTest, NumbersPickAtOnceAndOtherKeysDoNothing) {
  EXPECT_EQ(picked_after("3"), 2);
  EXPECT_EQ(picked_after("0 4x\x1b[C\x1b[5~\x1b[1;3C2"), 1);
}

TEST_F(MenuTest, TheMarkIsSeenAndThePickIsLeft) {
  start();
  EXPECT_THAT(terminal_.wait_for("3. both"), HasSubstr("> 1. replicate  16 bytes"));
  EXPECT_FALSE(terminal_.reads_by_line());
  terminal_.type("\x1b[B");
  EXPECT_THAT(terminal_.wait_for("3. both"), HasSubstr("> 2. shard"));
  terminal_.type("\r");
  terminal_.wait_for("\x1b[J> shard");
  EXPECT_EQ(WEXITSTATUS(status()), 1);
}

TEST_F(MenuTest, TheEndOfTheInputIsTheUsersMistake) { EXPECT_EQ(picked_after("\x04"), kRefused); }

TEST_F(MenuTest, SignalsLeaveTheTerminalAsItWas) {
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) {
    start();
    terminal_.wait_for("3. both");
    ::kill(child_, signal);
    const int end = status();
    EXPECT_TRUE(WIFSIGNALED(end));
    EXPECT_EQ(WTERMSIG(end), signal);
  }
}

}  // namespace
}  // namespace tessera::cli
