// Was a process killed because memory ran out?
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/file_descriptor.h"

namespace tessera::launch {

/// The number behind "oom_kill" in memory.events (cgroup v2) or memory.oom_control (v1); none if
/// there is no such line.
std::optional<int64_t> parse_oom_kills(std::string_view text);

/// Where the counters of the memory cgroup may be that /proc/self/cgroup's text names, the
/// likeliest first.
std::vector<std::string> oom_counter_files(std::string_view proc_self_cgroup,
                                           const std::string& cgroup_root);

/// Watches from its construction on.
class OutOfMemoryWatch {
 public:
  explicit OutOfMemoryWatch(const std::string& proc_self_cgroup = "/proc/self/cgroup",
                            const std::string& cgroup_root = "/sys/fs/cgroup",
                            const std::string& kernel_log = "/dev/kmsg");

  /// Whether `pid`, which died by SIGKILL, was out of memory's victim: the kernel's log says so
  /// (where we may read it), else the cgroup's counter grew.
  bool killed(pid_t pid);

 private:
  std::optional<int64_t> kills_of_cgroup() const;
  void read_kernel_log();

  std::vector<std::string> counter_files_;
  int64_t kills_at_start_ = 0;
  FileDescriptor kernel_log_;
  std::string log_text_;  // only the lines about killed processes
};

}  // namespace tessera::launch
