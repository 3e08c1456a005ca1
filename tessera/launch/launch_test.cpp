#include "tessera/launch/launch.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <set>
#include <thread>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/launch/failure.h"
#include "tessera/launch/out_of_memory.h"
#include "tessera/launch/process.h"
#include "tessera/launch/socket.h"

namespace tessera::launch {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;
using testing::MatchesRegex;
using testing::Not;

struct Outcome {
  int exit_code = 0;  ///< 128 + signal if the launcher died by one
  std::string out, err;
  std::chrono::duration<double> seconds{};
};

/// A launcher in a process of its own, with its output in files.
class LaunchTest : public testing::Test {
 protected:
  LaunchTest() {
    std::string name = std::filesystem::temp_directory_path() / "tessera_launch_XXXXXX";
    folder_ = ::mkdtemp(name.data());
  }
  ~LaunchTest() override { std::filesystem::remove_all(folder_); }

  std::string path(const std::string& name) const { return folder_ + "/" + name; }

  void start(const LaunchOptions& options) {
    started_ = Clock::now();
    launcher_ = ::fork();
    ASSERT_GE(launcher_, 0);
    if (launcher_ != 0) return;
    for (const int signal : {SIGINT, SIGHUP, SIGQUIT})
      ::signal(signal, SIG_DFL);  // CTest may run in the background
    ::dup2(::open(path("out").c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND, 0600), 1);
    ::dup2(::open(path("err").c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND, 0600), 2);
    try {
      ::_exit(launch(options));
    } catch (const std::exception& error) {
      write_all(2, error.what());
      ::_exit(99);
    }
  }

  Outcome finish() {
    int status = 0;
    ::waitpid(launcher_, &status, 0);
    const int code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    return {code, read_file(path("out")), read_file(path("err")), Clock::now() - started_};
  }

  Outcome run(const LaunchOptions& options) {
    start(options);
    return finish();
  }

  /// `script` for /bin/sh, with $D as the folder of this test.
  LaunchOptions shell(const std::string& script, int num_processes) const {
    return {.command = {"/bin/sh", "-c", script},
            .num_processes = num_processes,
            .environment = {{"D", folder_}, {"OMP_NUM_THREADS", "1"}}};
  }

  /// The launched programs that still live: processes with $D's value in their environment.
  std::vector<pid_t> survivors() const {
    std::vector<pid_t> result;
    for (const auto& process : list_processes()) {
      if (process.state == 'Z') continue;
      std::ifstream file("/proc/" + std::to_string(process.pid) + "/environ");
      const std::string text{std::istreambuf_iterator<char>(file), {}};
      if (text.find("D=" + folder_) != std::string::npos) result.push_back(process.pid);
    }
    return result;
  }

  static bool eventually(const std::function<bool()>& holds, std::chrono::seconds limit = 5s) {
    const auto deadline = Clock::now() + limit;
    while (!holds() && Clock::now() < deadline) std::this_thread::sleep_for(10ms);
    return holds();
  }

  bool appears(const std::string& name) const {
    return eventually([&] { return std::filesystem::exists(path(name)); }, 10s);
  }

  std::string folder_;
  pid_t launcher_ = 0;
  Clock::time_point started_;
};

std::string error_of(const LaunchOptions& options) {
  try {
    launch(options);
  } catch (const UserError& error) {
    return error.what();
  }
  return "no error";
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> result;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) result.push_back(line);
  return result;
}

constexpr const char* kPrintEnvironment =
    "echo $RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $GROUP_RANK $GROUP_WORLD_SIZE $ROLE_RANK "
    "$ROLE_WORLD_SIZE $ROLE_NAME $MASTER_ADDR $TORCHELASTIC_RESTART_COUNT "
    "$TORCHELASTIC_MAX_RESTARTS "
    "$TORCHELASTIC_USE_AGENT_STORE $OMP_NUM_THREADS ${TORCHELASTIC_RUN_ID:+id} "
    "${MASTER_PORT:+port}";

TEST_F(LaunchTest, OneRankHasTorchrunsEnvironment) {
  const auto outcome = run(shell(kPrintEnvironment, 1));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(outcome.out, "[0]: 0 0 1 1 0 1 0 1 default 127.0.0.1 0 0 False 1 id port\n");
  EXPECT_EQ(outcome.err, "");
}

TEST_F(LaunchTest, ThreeRanksOfTheSecondMachine) {
  auto options = shell(kPrintEnvironment, 3);
  options.num_nodes = 2;
  options.node_rank = 1;
  options.master_addr = "node0";
  options.master_port = 29500;
  options.max_restarts = 4;
  auto lines = lines_of(run(options).out);
  std::sort(lines.begin(), lines.end());
  EXPECT_THAT(lines,
              testing::ElementsAre("[3]: 3 0 6 3 1 2 3 6 default node0 0 4 False 1 id port",
                                   "[4]: 4 1 6 3 1 2 4 6 default node0 0 4 False 1 id port",
                                   "[5]: 5 2 6 3 1 2 5 6 default node0 0 4 False 1 id port"));
}

TEST_F(LaunchTest, ThreadsAreLimitedAndSaidOnce) {
  auto options = shell("echo $OMP_NUM_THREADS", 2);
  options.environment.erase("OMP_NUM_THREADS");
  ::unsetenv("OMP_NUM_THREADS");
  const auto outcome = run(options);
  EXPECT_THAT(lines_of(outcome.out), testing::UnorderedElementsAre("[0]: 1", "[1]: 1"));
  EXPECT_THAT(lines_of(outcome.err),
              testing::ElementsAre(HasSubstr("OMP_NUM_THREADS is not set: using 1")));
}

TEST_F(LaunchTest, LinesOfRanksDoNotMix) {
  // Each line comes in three pieces, while other ranks print as well.
  const auto outcome =
      run(shell("i=0; while [ $i -lt 300 ]; do printf a$RANK; printf b$RANK; echo c$RANK; "
                "i=$((i+1)); done; printf end",
                3));
  const auto lines = lines_of(outcome.out);
  EXPECT_EQ(lines.size(), 903U);
  for (const auto& line : lines) {
    const std::string rank = line.substr(1, 1);
    EXPECT_THAT(line,
                testing::AnyOf(fmt::format("[{0}]: a{0}b{0}c{0}", rank), "[" + rank + "]: end"));
  }
}

TEST_F(LaunchTest, ALargeOutputIsComplete) {
  const auto outcome =
      run(shell("head -c 3000000 /dev/zero | tr '\\0' x; echo; echo last; echo late >&2", 2));
  EXPECT_EQ(std::count(outcome.out.begin(), outcome.out.end(), 'x'), 6000000);
  EXPECT_THAT(outcome.out, HasSubstr("[1]: last\n"));
  EXPECT_THAT(outcome.err, HasSubstr("[1]: late\n"));
}

TEST_F(LaunchTest, TheFirstFailureIsTheExitCodeAndIsShown) {
  const auto outcome =
      run(shell("if [ $RANK = 1 ]; then echo why >&2; exit 3; fi; sleep 1; exit 4", 3));
  EXPECT_EQ(outcome.exit_code, 3);
  EXPECT_THAT(outcome.err, HasSubstr("exited with code 3\n  why\n"));
  EXPECT_THAT(outcome.err, HasSubstr("tessera launch: rank 1 (pid "));
  EXPECT_LT(outcome.seconds.count(), 5);
}

TEST_F(LaunchTest, ARankThatOnlyLostItsPeerIsNotTheCause) {
  for (const auto* line : {"Connection closed by peer", "Failed to recv, got 0 bytes"}) {
    const auto outcome = run(shell(
        fmt::format("if [ $RANK = 0 ]; then echo '{}' >&2; exit 1; fi; sleep 0.1; exit 7", line),
        2));
    EXPECT_EQ(outcome.exit_code, 7);
    EXPECT_THAT(outcome.err, HasSubstr("tessera launch: rank 1 "));
  }
}

TEST_F(LaunchTest, AStoppedRankIsTheCauseAndIsEnded) {
  // What the others say of it does not matter, nor who of them fails first.
  const auto outcome =
      run(shell("[ $RANK != 1 ] || { kill -STOP $$; sleep 9; }; sleep 0.$RANK; "
                "echo 'Timed out waiting 5000ms for recv operation to complete' >&2; exit 1",
                3));
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.err,
              testing::ContainsRegex("tessera launch: rank 1 \\(pid [0-9]+\\) was stopped "
                                     "\\(SIGSTOP or a debugger\\)\n"));
  EXPECT_LT(outcome.seconds.count(), 3);
  EXPECT_THAT(survivors(), testing::IsEmpty());
}

TEST_F(LaunchTest, ARankThatFailedByItselfIsTheCauseBesideAStoppedOne) {
  const auto outcome = run(
      shell("[ $RANK != 1 ] || { kill -STOP $$; sleep 9; }; sleep 0.3; echo why >&2; exit 7", 2));
  EXPECT_EQ(outcome.exit_code, 7);
  EXPECT_THAT(outcome.err, HasSubstr("tessera launch: rank 0 "));
}

TEST_F(LaunchTest, TheRankThatDidNotComeIsTheCause) {
  // Rank 0 waits for rank 1, and that for rank 2, which hangs and ends as if all were well.
  const auto outcome = run(
      shell("[ $RANK = 0 ] && { echo 'failed after 5.0 s: rank 1 did not come within 5 s' >&2; "
            "exit 1; }; trap 'exit 0' TERM; "
            "[ $RANK = 1 ] && echo 'failed after 5.0 s: ranks 2, 7 did not come within 5 s' >&2; "
            "while :; do sleep 0.05; done",
            3));
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.err,
              testing::ContainsRegex("rank 2 \\(pid [0-9]+\\) still ran but did not come\n"
                                     "  failed after 5.0 s: ranks 2, 7 did not come within 5 s\n"));
  EXPECT_LT(outcome.seconds.count(), 5);
}

TEST_F(LaunchTest, AKilledRankEndsAllAndTellsItsStep) {
  const auto outcome = run(
      {.command = {WORKER, "die_at_step_17"}, .num_processes = 3, .environment = {{"D", folder_}}});
  EXPECT_EQ(outcome.exit_code, 128 + SIGKILL);
  EXPECT_THAT(
      outcome.err,
      testing::ContainsRegex("rank 1 \\(pid [0-9]+\\) was killed by SIGKILL \\(9\\) at step 17\n"));
  EXPECT_LT(outcome.seconds.count(), 5);
  EXPECT_THAT(survivors(), testing::IsEmpty());
}

TEST_F(LaunchTest, RanksThatIgnoreSigtermAreKilledWithTheirChildren) {
  start(shell("trap '' TERM; echo $$ > $D/pid$RANK; sleep 100 & while :; do sleep 1; done", 3));
  ASSERT_TRUE(appears("pid0") && appears("pid1") && appears("pid2"));
  ASSERT_TRUE(eventually([&] { return !read_file(path("pid1")).empty(); }));
  const auto killed = Clock::now();
  ::kill(std::stoi(read_file(path("pid1"))), SIGKILL);
  const auto outcome = finish();
  EXPECT_EQ(outcome.exit_code, 128 + SIGKILL);
  EXPECT_LT(std::chrono::duration<double>(Clock::now() - killed).count(), 5);
  EXPECT_THAT(survivors(), testing::IsEmpty());
}

TEST_F(LaunchTest, ChildrenThatOutliveTheirRankAreEnded) {
  // The second one left its process group and session.
  const auto outcome = run(shell("sleep 100 & setsid sleep 100 & exit 0", 2));
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_THAT(survivors(), testing::IsEmpty());
}

TEST_F(LaunchTest, SignalsArePassedOnToDescendants) {
  for (const int signal : {SIGTERM, SIGINT}) {
    // dash starts background jobs with SIGINT ignored, hence the foreground one.
    start(
        shell("trap 'echo got; exit 5' TERM INT; sh -c 'trap \"echo too > $D/deep; exit\" TERM "
              "INT; echo > $D/up; "
              "while :; do sleep 0.05; done'; sleep 50",
              1));
    ASSERT_TRUE(appears("up"));
    ::kill(launcher_, signal);
    const auto outcome = finish();
    EXPECT_EQ(outcome.exit_code, 128 + signal) << outcome.err;
    EXPECT_EQ(outcome.out, "[0]: got\n");
    EXPECT_THAT(outcome.err,
                testing::EndsWith(signal == SIGINT ? "tessera launch: stopped by SIGINT (2)\n"
                                                   : "tessera launch: stopped by SIGTERM (15)\n"));
    EXPECT_TRUE(std::filesystem::exists(path("deep")));
    EXPECT_THAT(survivors(), testing::IsEmpty());
    EXPECT_LT(outcome.seconds.count(), 5);
    for (const char* name : {"up", "deep"}) std::filesystem::remove(path(name));
  }
}

TEST_F(LaunchTest, ASecondSignalKillsAtOnce) {
  start(shell("trap '' TERM; echo > $D/up; while :; do sleep 0.05; done", 1));
  ASSERT_TRUE(appears("up"));
  ::kill(launcher_, SIGTERM);
  std::this_thread::sleep_for(1100ms);
  ::kill(launcher_, SIGTERM);
  const auto outcome = finish();
  EXPECT_EQ(outcome.exit_code, 128 + SIGTERM);
  EXPECT_LT(outcome.seconds.count(), 5);  // and not the 10 s of signal_grace
}

// `timeout` sends its signal to a process, and then to the group that it is in.
TEST_F(LaunchTest, TheSameSignalTwiceIsOneRequest) {
  start(shell(
      "trap 'sleep 0.5; echo saved; exit 75' TERM; echo > $D/up; while :; do sleep 0.05; done", 1));
  ASSERT_TRUE(appears("up"));
  ::kill(launcher_, SIGTERM);
  std::this_thread::sleep_for(100ms);
  ::kill(launcher_, SIGTERM);
  EXPECT_EQ(finish().out, "[0]: saved\n");
}

TEST_F(LaunchTest, AKilledLauncherLeavesNothing) {
  start(
      shell("trap '' TERM HUP; sleep 100 & setsid sleep 100 & echo > $D/up$RANK; while :; do sleep "
            "1; done",
            2));
  ASSERT_TRUE(appears("up0") && appears("up1"));
  ::kill(launcher_, SIGKILL);
  EXPECT_EQ(finish().exit_code, 128 + SIGKILL);
  EXPECT_TRUE(eventually([&] { return survivors().empty(); }));
}

TEST_F(LaunchTest, RestartsAllRanksOnANewPort) {
  auto options = shell(
      "echo $MASTER_PORT >> $D/ports$RANK; echo $TORCHELASTIC_RESTART_COUNT; "
      "[ $RANK = 0 ] || { sleep 0.2; [ $TORCHELASTIC_RESTART_COUNT = 2 ]; }",
      2);
  options.max_restarts = 3;
  const auto outcome = run(options);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(lines_of(outcome.out), testing::UnorderedElementsAre("[0]: 0", "[0]: 1", "[0]: 2",
                                                                   "[1]: 0", "[1]: 1", "[1]: 2"));
  EXPECT_THAT(outcome.err, HasSubstr("restart 2 of 3"));
  EXPECT_EQ(read_file(path("ports0")), read_file(path("ports1")));
  const auto ports = lines_of(read_file(path("ports0")));
  ASSERT_EQ(ports.size(), 3U);
  EXPECT_NE(ports[0], ports[1]);
}

TEST_F(LaunchTest, RestartsEnd) {
  auto options = shell("exit 6", 1);
  options.max_restarts = 1;
  const auto outcome = run(options);
  EXPECT_EQ(outcome.exit_code, 6);
  EXPECT_EQ(lines_of(outcome.err).size(), 3U) << outcome.err;  // cause, restart, cause
}

TEST_F(LaunchTest, LogFilesHoldBothStreams) {
  auto options = shell("echo out$RANK; echo err$RANK >&2", 2);
  options.log_dir = path("logs/deep");
  options.output = OutputMode::plain;
  const auto outcome = run(options);
  EXPECT_EQ(outcome.out, "out0\n");
  for (const std::string rank : {"0", "1"}) {
    EXPECT_THAT(lines_of(read_file(path("logs/deep/rank_" + rank + ".log"))),
                testing::UnorderedElementsAre("out" + rank, "err" + rank));
  }
}

TEST_F(LaunchTest, PlainShowsRankZeroAndTheCauseOnly) {
  auto options = shell(
      "printf out$RANK; echo err$RANK >&2; [ $RANK != 2 ] || { sleep 0.1; exit 3; }; sleep 9", 3);
  options.output = OutputMode::plain;
  const auto outcome = run(options);
  EXPECT_EQ(outcome.out, "out0");
  EXPECT_THAT(
      outcome.err,
      MatchesRegex("err0\ntessera launch: rank 2 \\(pid [0-9]+\\) exited with code 3\n  err2\n"));
}

TEST_F(LaunchTest, PlainShowsAUsersErrorOnce) {
  for (const char* script :
       {"echo bad key >&2; exit 2",                                    // every rank says so
        "[ $RANK = 0 ] && { echo bad key >&2; exit 2; }; sleep 9",     // rank 0
        "[ $RANK = 1 ] && { echo bad key >&2; exit 2; }; sleep 9"}) {  // another
    auto options = shell(script, 2);
    options.output = OutputMode::plain;
    const auto outcome = run(options);
    EXPECT_EQ(outcome.exit_code, 2);
    EXPECT_EQ(outcome.err, "bad key\n");
  }
}

TEST_F(LaunchTest, RankZeroReadsOurInput) {
  const Pipe input = make_pipe();
  write_all(input.write.get(), "hello\n");
  const FileDescriptor before(::dup(0));
  ::dup2(input.read.get(), 0);
  start(shell("[ $RANK = 0 ] && read line && echo $line || cat", 2));
  ::dup2(before.get(), 0);
  EXPECT_EQ(finish().out, "[0]: hello\n");
}

TEST_F(LaunchTest, RankZeroGetsTheListeningSocket) {
  const auto outcome = run(
      {.command = {WORKER, "check_listen_socket"}, .num_processes = 2, .pass_listen_socket = true});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
}

TEST_F(LaunchTest, BadInputIsAUsersError) {
  EXPECT_THAT(error_of({}), HasSubstr("no program"));
  EXPECT_THAT(error_of({.command = {"true"}, .num_processes = 0}), HasSubstr("at least 1, got 0"));
  EXPECT_THAT(error_of({.command = {"true"}, .num_nodes = 2, .node_rank = 2}),
              HasSubstr("expected 0 to 1, got 2"));
  EXPECT_THAT(error_of({.command = {"true"}, .num_nodes = 2}), HasSubstr("--master-port"));
  EXPECT_THAT(error_of({.command = {"true"}, .master_port = 65536}), HasSubstr("65536"));
  EXPECT_THAT(error_of({.command = {"no_such_program"}}), HasSubstr("'no_such_program' not found"));
  EXPECT_THAT(error_of({.command = {path("missing")}}), HasSubstr("not found"));
  EXPECT_THAT(error_of({.command = {folder_}}), HasSubstr("not an executable file"));
  write_file(path("text"), "echo");
  EXPECT_THAT(error_of({.command = {path("text")}}), HasSubstr("not an executable file"));
  ::chmod(path("text").c_str(), 0700);
  EXPECT_THAT(error_of({.command = {path("text")}}),
              HasSubstr("does its first line name an interpreter"));
  EXPECT_THAT(error_of({.command = {"true"}, .log_dir = path("text/logs")}),
              HasSubstr("cannot be made"));
}

// A program binds its port when it is ready, a second later: until then no connection of others may take it.
TEST_F(LaunchTest, AFreePortIsNoneThatConnectionsTake) {
  int low = 0, high = 0;
  ASSERT_TRUE(std::ifstream("/proc/sys/net/ipv4/ip_local_port_range") >> low >> high);
  std::set<int> ports;
  for (int i = 0; i < 20; ++i) {
    const int port = bind_port(0).port;
    EXPECT_TRUE(port < low || port > high) << port;
    ports.insert(port);
  }
  EXPECT_GT(ports.size(), 10u);
}

TEST_F(LaunchTest, AnOccupiedPortIsAUsersError) {
  const BoundSocket taken = bind_port(0);
  ASSERT_EQ(::listen(taken.fd.get(), 1), 0);
  EXPECT_THAT(
      error_of({.command = {"true"}, .master_port = taken.port}),
      HasSubstr("port " + std::to_string(taken.port) + " cannot be used: Address already in use"));
}

TEST_F(LaunchTest, AnOccupiedPortGivesWayToAFreeOneIfAllowed) {
  const BoundSocket taken = bind_port(0);
  ASSERT_EQ(::listen(taken.fd.get(), 1), 0);
  auto options = shell("echo $MASTER_PORT $ROLE_NAME", 1);
  options.master_port = taken.port;
  options.other_port_if_busy = true;
  options.role = "trainer";
  const auto outcome = run(options);
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_THAT(outcome.err, HasSubstr("port " + std::to_string(taken.port) + " is in use"));
  EXPECT_THAT(outcome.out, HasSubstr(" trainer"));
  EXPECT_THAT(outcome.out, testing::Not(HasSubstr(std::to_string(taken.port))));

  options.num_nodes = 2;  // the other machines know only that port
  EXPECT_THAT(error_of(options), HasSubstr("cannot be used"));
}

TEST(OutOfMemory, CountersAreRead) {
  EXPECT_EQ(parse_oom_kills("low 0\nhigh 0\nmax 5\noom 1\noom_kill 3\noom_group_kill 0\n"), 3);
  EXPECT_EQ(parse_oom_kills("oom_kill_disable 0\nunder_oom 0\noom_kill 2\n"), 2);
  EXPECT_EQ(parse_oom_kills("low 0\n"), std::nullopt);
  EXPECT_EQ(parse_oom_kills(""), std::nullopt);
  EXPECT_THAT(oom_counter_files("0::/user.slice/a", "/cg"),
              testing::ElementsAre("/cg/user.slice/a/memory.events", "/cg/memory.events"));
  EXPECT_EQ(oom_counter_files("9:name=systemd:/\n4:cpu,memory:/job/1\n0::/\n", "/cg").front(),
            "/cg/memory/job/1/memory.oom_control");
}

TEST_F(LaunchTest, AGrownCounterMeansOutOfMemory) {
  write_file(path("cgroup"), "0::/job\n");
  std::filesystem::create_directory(path("job"));
  write_file(path("job/memory.events"), "oom_kill 4\n");
  OutOfMemoryWatch watch(path("cgroup"), folder_, path("no_log"));
  EXPECT_FALSE(watch.killed(1234));
  write_file(path("job/memory.events"), "oom_kill 5\n");
  EXPECT_TRUE(watch.killed(1234));
}

/// Under a real limit, where TESSERA_TEST_CGROUP names a folder of memory cgroups in which we may
/// make one.
TEST_F(LaunchTest, AnOutOfMemoryKillIsCalledThat) {
  const char* parent = std::getenv("TESSERA_TEST_CGROUP");
  if (parent == nullptr) GTEST_SKIP() << "TESSERA_TEST_CGROUP is not set";
  const std::string group = std::string(parent) + "/tessera_test_" + std::to_string(::getpid());
  ASSERT_EQ(::mkdir(group.c_str(), 0700), 0);
  const bool v2 = std::filesystem::exists(group + "/memory.max");
  std::ofstream(group + (v2 ? "/memory.max" : "/memory.limit_in_bytes")) << (64 << 20);
  std::ofstream(group + (v2 ? "/memory.swap.max" : "/memory.swappiness")) << 0;
  const std::string enter = "echo $$ > " + group + "/cgroup.procs; exec " + WORKER + " eat_memory";
  const auto outcome = run(shell(enter, 1));
  EXPECT_EQ(outcome.exit_code, 128 + SIGKILL) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("was killed by SIGKILL (9): out of memory"));
  EXPECT_TRUE(eventually([&] { return ::rmdir(group.c_str()) == 0; }));
}

TEST_F(LaunchTest, ALogThatIsNoFileOrAnothersIsRefused) {
  std::filesystem::create_directories(path("logs"));
  const auto log = path("logs/rank_0.log");
  ASSERT_EQ(::mkfifo(log.c_str(), 0600), 0);
  EXPECT_THAT(error_of({.command = {"true"}, .log_dir = path("logs")}),
              HasSubstr("rank_0.log' is no regular file; remove it or choose another log folder"));
  std::filesystem::remove(log);
  write_file(log, "of a launch that is under way");
  const FileDescriptor other(::open(log.c_str(), O_WRONLY | O_CLOEXEC));
  ASSERT_EQ(::flock(other.get(), LOCK_EX), 0);
  EXPECT_THAT(error_of({.command = {"true"}, .log_dir = path("logs")}),
              HasSubstr("rank_0.log': another launch writes there; wait for its end"));
  EXPECT_EQ(read_file(log), "of a launch that is under way");
}

}  // namespace
}  // namespace tessera::launch
