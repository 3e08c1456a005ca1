#include "tests/faults/driver.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <string_view>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/launch/process.h"

extern char** environ;

namespace tessera::faults {
namespace {

std::vector<std::string> environment_with(const std::vector<std::string>& variables) {
  std::vector<std::string> all{"LD_PRELOAD=" TESSERA_FAULT_SHIM, "OMP_NUM_THREADS=1",
                               "ASAN_OPTIONS=verify_asan_link_order=0"};
  for (char** variable = environ; *variable != nullptr; ++variable) all.emplace_back(*variable);
  all.insert(all.end(), variables.begin(), variables.end());
  return all;
}

std::string next_line(std::FILE* file) {
  std::string line;
  for (int c; (c = std::fgetc(file)) != EOF && c != '\n';) line += static_cast<char>(c);
  return line;
}

void take(std::string_view line, SaveEnd& end) {
  // Ranks' lines have "[0]: " before them.
  if (line.starts_with("[")) line.remove_prefix(std::min(line.find(' '), line.size() - 1) + 1);
  if (line.starts_with("saved ")) {
    end.saved.insert(std::atoll(std::string(line.substr(6)).c_str()));
  } else if (line.starts_with("failed ") || line.starts_with("refused: ")) {
    end.refusals.emplace_back(line);
  }
}

void take_status(int status, SaveEnd& end) {
  end.killed = WIFSIGNALED(status);
  end.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace

Driver::Driver() {
  auto requests = launch::make_pipe(), replies = launch::make_pipe();
  pid_ = launch::spawn({.program = TESSERA_FAULT_DRIVER,
                        .arguments = {"checkpoint_fault_driver"},
                        .environment = environment_with({}),
                        .stdin_fd = requests.read.get(),
                        .stdout_fd = replies.write.get()});
  requests_ = std::move(requests.write);
  replies_ = ::fdopen(::dup(replies.read.get()), "r");
}

Driver::~Driver() {
  requests_.reset();
  std::fclose(replies_);
  ::waitpid(pid_, nullptr, 0);
}

SaveEnd Driver::save(const SaveJob& job) {
  const auto line = fmt::format("{} {} {} {} {} {}\n", job.faults, job.log, job.folder.string(),
                                job.first, job.last, job.mode);
  if (::write(requests_.get(), line.data(), line.size()) != std::ssize(line)) {
    system_error("checkpoint_fault_driver has ended");
  }
  SaveEnd end;
  while (true) {
    const auto reply = next_line(replies_);
    if (reply.empty()) throw SystemError("checkpoint_fault_driver has ended");
    if (reply.starts_with("ended ")) {
      take_status(std::atoi(reply.c_str() + 6), end);
      return end;
    }
    take(reply, end);
  }
}

SaveEnd save_on_two_ranks(const SaveJob& job, int faulty_rank) {
  auto output = launch::make_pipe();
  std::vector<std::string> variables{"TESSERA_FAULT_FOLDER=" + job.folder.string(),
                                     fmt::format("TESSERA_FAULT_RANK={}", faulty_rank)};
  if (job.faults != "-") variables.push_back("TESSERA_FAULTS=" + job.faults);
  if (job.log != "-") variables.push_back("TESSERA_FAULT_LOG=" + job.log);
  const pid_t pid = launch::spawn(
      {.program = TESSERA_PROGRAM,
       .arguments = {"tessera", "launch", "-n", "2", TESSERA_FAULT_DRIVER, job.folder.string(),
                     std::to_string(job.first), std::to_string(job.last), job.mode},
       .environment = environment_with(variables),
       .stdout_fd = output.write.get(),
       .stderr_fd = output.write.get()});
  output.write.reset();
  SaveEnd end;
  std::FILE* lines = ::fdopen(::dup(output.read.get()), "r");
  while (std::feof(lines) == 0) take(next_line(lines), end);
  std::fclose(lines);
  int status = 0;
  ::waitpid(pid, &status, 0);
  take_status(status, end);
  return end;
}

std::vector<std::string> calls_in(const std::filesystem::path& log) {
  std::vector<std::string> calls;
  std::ifstream file(log);
  for (std::string line; std::getline(file, line);) calls.push_back(line);
  return calls;
}

}  // namespace tessera::faults
