#include "tessera/launch/out_of_memory.h"

#include <fcntl.h>

#include <array>
#include <cerrno>
#include <fstream>
#include <iterator>
#include <sstream>

#include "tessera/base/error.h"

namespace tessera::launch {
namespace {

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

std::optional<int64_t> parse_oom_kills(std::string_view text) {
  std::istringstream lines{std::string(text)};
  std::string name;
  for (int64_t value = 0; lines >> name >> value;) {
    if (name == "oom_kill") return value;
  }
  return std::nullopt;
}

std::vector<std::string> oom_counter_files(std::string_view proc_self_cgroup,
                                           const std::string& cgroup_root) {
  std::vector<std::string> files;
  std::istringstream lines{std::string(proc_self_cgroup)};
  for (std::string line; std::getline(lines, line);) {  // "hierarchy:controllers:/path"
    const auto first = line.find(':');
    const auto second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = fmt::format(",{},", line.substr(first + 1, second - first - 1));
    const std::string path = line.substr(second + 1);
    if (controllers == ",,") {
      files.push_back(cgroup_root + path + "/memory.events");
      files.push_back(cgroup_root + "/memory.events");
    } else if (controllers.find(",memory,") != std::string::npos) {
      files.push_back(cgroup_root + "/memory" + path + "/memory.oom_control");
      files.push_back(cgroup_root +
                      "/memory/memory.oom_control");  // a container sees its own group as the root
    }
  }
  return files;
}

OutOfMemoryWatch::OutOfMemoryWatch(const std::string& proc_self_cgroup,
                                   const std::string& cgroup_root, const std::string& kernel_log)
    : counter_files_(oom_counter_files(text_of(proc_self_cgroup), cgroup_root)),
      kernel_log_(::open(kernel_log.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC)) {
  kills_at_start_ = kills_of_cgroup().value_or(0);
  if (kernel_log_.is_open()) ::lseek(kernel_log_.get(), 0, SEEK_END);
}

bool OutOfMemoryWatch::killed(pid_t pid) {
  read_kernel_log();
  if (log_text_.find("Killed process " + std::to_string(pid) + " ") != std::string::npos)
    return true;
  return kills_of_cgroup().value_or(0) > kills_at_start_;
}

std::optional<int64_t> OutOfMemoryWatch::kills_of_cgroup() const {
  for (const auto& file : counter_files_) {
    if (const auto kills = parse_oom_kills(text_of(file))) return kills;
  }
  return std::nullopt;
}

void OutOfMemoryWatch::read_kernel_log() {
  if (!kernel_log_.is_open()) return;
  std::array<char, 8192> record;  // a read gives one record; EAGAIN after the last, EPIPE for one
                                  // overwritten meanwhile
  for (;;) {
    const ssize_t got = ::read(kernel_log_.get(), record.data(), record.size());
    if (got == 0 || (got < 0 && errno != EPIPE && errno != EINTR)) return;
    const std::string_view line(record.data(), got < 0 ? 0 : static_cast<size_t>(got));
    if (line.find("Killed process ") != std::string_view::npos) log_text_ += line;
  }
}

}  // namespace tessera::launch
