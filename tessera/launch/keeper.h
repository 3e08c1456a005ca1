// Ends a launcher's ranks when the launcher itself was killed and could not.
#pragma once

#include <sys/types.h>

#include <span>
#include <string>

#include "tessera/base/file_descriptor.h"

namespace tessera::launch {

/// A small process beside the launcher. When the launcher dies without closing it, it kills
/// (SIGKILL) the process groups on record and every process whose environment holds `marker`, until
/// none is left.
class Keeper {
 public:
  /// `marker`: "NAME=value", unique to this launch and set for every rank. At most `num_groups`
  /// groups on record.
  Keeper(std::string marker, int num_groups);
  ~Keeper();
  Keeper(const Keeper&) = delete;
  Keeper& operator=(const Keeper&) = delete;

  void set_group(int index, pid_t group);  ///< 0: none any more
  pid_t pid() const { return pid_; }

 private:
  [[noreturn]] void keep(const std::string& marker);

  std::span<pid_t> groups_;  // in memory shared with the keeper
  FileDescriptor alive_;     // the keeper reads the other end and sees it close
  pid_t pid_ = -1;
};

}  // namespace tessera::launch
