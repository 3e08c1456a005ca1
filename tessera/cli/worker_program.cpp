#include "tessera/cli/worker_program.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <thread>

#include "tessera/base/error.h"

namespace tessera::cli {

std::string worker_path() {
  return (std::filesystem::read_symlink("/proc/self/exe").parent_path() / "tessera-worker")
      .string();
}

void become(const std::vector<std::string>& command) {
  std::vector<char*> arguments;
  for (const auto& argument : command) arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);
  ::execv(arguments[0], arguments.data());
  system_error(command[0] + ": cannot be started");
}

int num_ranks(int64_t asked) {
  const int64_t by_cores = std::max<int64_t>(1, std::thread::hardware_concurrency() / 2);
  return static_cast<int>(asked > 0 ? asked : by_cores);
}

}  // namespace tessera::cli
