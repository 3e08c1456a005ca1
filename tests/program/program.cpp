#include "tests/program/program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <thread>

#include "tessera/base/error.h"
#include "tessera/launch/process.h"

namespace tessera {
namespace {

using Clock = std::chrono::steady_clock;

/// A file in memory that a child reads, or writes and we read afterwards: nobody waits for the
/// other.
class Capture {
 public:
  explicit Capture(const std::string& text = "") : fd_(::memfd_create("capture", MFD_CLOEXEC)) {
    if (!fd_.is_open()) system_error("memfd_create");
    const auto written = ::pwrite(fd_.get(), text.data(), text.size(), 0);
    if (written != static_cast<ssize_t>(text.size())) system_error("capture");
  }
  int fd() const { return fd_.get(); }

  std::string text() const {
    std::string text(static_cast<size_t>(::lseek(fd_.get(), 0, SEEK_END)), '\0');
    const auto got = ::pread(fd_.get(), text.data(), text.size(), 0);
    if (got != static_cast<ssize_t>(text.size())) system_error("capture");
    return text;
  }

 private:
  FileDescriptor fd_;
};

std::vector<std::string> environment_of(const ProgramOptions& options) {
  auto variables = options.environment;
  for (const char* name : {"PATH", "HOME", "TMPDIR", "LD_LIBRARY_PATH", "ASAN_OPTIONS",
                           "LSAN_OPTIONS", "UBSAN_OPTIONS", "TSAN_OPTIONS"}) {
    if (const char* value = ::getenv(name)) variables.emplace(name, value);
  }
  variables.emplace("OMP_NUM_THREADS", "1");
  std::vector<std::string> result;
  for (const auto& [name, value] : variables) result.push_back(name + "=" + value);
  return result;
}

}  // namespace

ProgramEnd run_tessera(const std::vector<std::string>& arguments, const ProgramOptions& options) {
  const Capture in(options.input), out, error;
  std::vector<std::string> command{"tessera"};
  if (options.without_rights) {
    command = {"setpriv", fmt::format("--reuid={}", kWithoutRights),
               fmt::format("--regid={}", kWithoutRights), "--clear-groups", TESSERA_PROGRAM};
  }
  std::string program = options.without_rights ? launch::find_program("setpriv") : TESSERA_PROGRAM;
  if (!options.redirection.empty()) {
    command = {"sh", "-c", "exec \"$0\" \"$@\" " + options.redirection, TESSERA_PROGRAM};
    program = launch::find_program("sh");
  }
  command.insert(command.end(), arguments.begin(), arguments.end());
  const pid_t pid = launch::spawn({.program = program,
                                   .arguments = std::move(command),
                                   .environment = environment_of(options),
                                   .stdin_fd = in.fd(),
                                   .stdout_fd = out.fd(),
                                   .stderr_fd = error.fd()});
  ProgramEnd end;
  int status = 0;
  const auto give_up = Clock::now() + options.deadline;
  while (::waitpid(pid, &status, end.in_time ? WNOHANG : 0) == 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    const bool killed = !options.killed_at.empty() && std::filesystem::exists(options.killed_at);
    if (Clock::now() >= give_up) end.in_time = false;
    if (killed || !end.in_time) ::kill(-pid, SIGKILL);
  }
  end.exit_code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  end.out = out.text();
  end.error = error.text();
  return end;
}

pid_t start_tessera(const std::vector<std::string>& arguments, int terminal) {
  std::vector<std::string> command{"tessera"};
  command.insert(command.end(), arguments.begin(), arguments.end());
  return launch::spawn({.program = TESSERA_PROGRAM,
                        .arguments = std::move(command),
                        .environment = environment_of({}),
                        .stdin_fd = terminal,
                        .stdout_fd = terminal,
                        .stderr_fd = terminal});
}

std::string why_not_without_rights() {
  if (::getuid() != 0) return "not root: this user has no more rights than another";
  const char* paths = ::getenv("PATH");
  if (paths == nullptr || ::access("/usr/bin/setpriv", X_OK) != 0) return "no setpriv here";
  const auto end = run_tessera({"--version"}, {.without_rights = true});
  return end.exit_code == 0 ? "" : "another user may not read the build: " + end.error;
}

void expect_mistake(const ProgramEnd& end, const std::string& message) {
  EXPECT_EQ(end.exit_code, kUserErrorExit) << message;
  EXPECT_EQ(end.out, "") << message;
  EXPECT_THAT(end.error, ::testing::StartsWith("tessera: "));
  EXPECT_THAT(end.error, ::testing::HasSubstr(message));
  EXPECT_EQ(std::count(end.error.begin(), end.error.end(), '\n'), 1) << end.error;
}

}  // namespace tessera
