#include "tessera/launch/keeper.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <fstream>
#include <iterator>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/launch/process.h"

namespace tessera::launch {
namespace {

bool environment_holds(pid_t pid, const std::string& marker) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/environ");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  // Variables end in a zero byte, hence c_str() with its own.
  return text.find(std::string(marker.c_str(), marker.size() + 1)) != std::string::npos;
}

}  // namespace

Keeper::Keeper(std::string marker, int num_groups) {
  const size_t bytes = static_cast<size_t>(num_groups) * sizeof(pid_t);
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) system_error("launch: no shared memory");
  groups_ = {static_cast<pid_t*>(memory), static_cast<size_t>(num_groups)};
  Pipe pipe = make_pipe();
  pid_ = ::fork();
  if (pid_ < 0) {
    ::munmap(memory, bytes);
    system_error("launch: cannot start a process");
  }
  if (pid_ == 0) {
    ::dup2(pipe.read.get(), 0);
    keep(marker);
  }
  alive_ = std::move(pipe.write);
}

Keeper::~Keeper() {
  for (pid_t& group : groups_) std::atomic_ref(group).store(0);
  ::kill(pid_, SIGKILL);
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
  ::munmap(groups_.data(), groups_.size_bytes());
}

void Keeper::set_group(int index, pid_t group) {
  std::atomic_ref(groups_[static_cast<size_t>(index)]).store(group);
}

void Keeper::keep(const std::string& marker) {
  ::setsid();  // not reached by the terminal's signals
  ::prctl(PR_SET_NAME, "tessera-keeper");
  // Holding nothing of the launcher's but the pipe: whoever reads its output must see the end of
  // it.
  ::close_range(1, ~0U, 0);
  char byte;
  while (::read(0, &byte, 1) < 0 && errno == EINTR) {
  }
  constexpr int kRounds = 100;  // x 20 ms: more only if a rank forks faster than we kill
  for (int round = 0; round < kRounds; ++round) {
    bool found = false;
    for (pid_t& group : groups_) {
      const pid_t id = std::atomic_ref(group).load();
      if (id > 1) found |= ::kill(-id, SIGKILL) == 0;
    }
    for (const auto& process : list_processes()) {
      if (process.state == 'Z' || process.pid == ::getpid()) continue;
      if (environment_holds(process.pid, marker)) found |= ::kill(process.pid, SIGKILL) == 0;
    }
    if (!found) break;
    ::usleep(20000);
  }
  ::_exit(0);
}

}  // namespace tessera::launch
