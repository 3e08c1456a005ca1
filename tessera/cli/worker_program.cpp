#include "tessera/cli/worker_program.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <thread>

#include "tessera/base/error.h"
#include "tessera/cli/libtorch_of_user.h"

namespace tessera::cli {

std::filesystem::path install_prefix() {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path().parent_path();
}

std::string job_file(const std::string& job) {
  if (job.find('/') != std::string::npos || std::filesystem::exists(job)) return job;
  const auto recipe = install_prefix() / "share/doc/tessera/recipes" / (job + ".yaml");
  return std::filesystem::exists(recipe) ? recipe.string() : job;
}

std::string worker_path() {
  const auto prefix = install_prefix();
  const auto worker = prefix / "bin" / "tessera-worker";
  if (::access(worker.c_str(), X_OK) != 0) {
    user_error("{}: cannot be started: {}; it stands beside tessera, install Tessera again",
               worker.string(), std::strerror(errno));
  }
  use_libtorch_of_user(worker, prefix);
  return worker.string();
}

std::string file_for_ranks(std::string_view content) {
  const int fd = ::memfd_create("tessera-ranks", 0);  // stays open for whoever comes of us
  for (size_t done = 0; fd >= 0 && done < content.size();) {
    const auto count = ::write(fd, content.data() + done, content.size() - done);
    if (count < 0) system_error("what the ranks read: cannot be written");
    done += static_cast<size_t>(count);
  }
  if (fd < 0) system_error("what the ranks read: no file in memory");
  return fmt::format("/proc/self/fd/{}", fd);
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
