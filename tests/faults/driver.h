// checkpoint_fault_driver, run under the shim.
#pragma once

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "tessera/base/file_descriptor.h"

namespace tessera::faults {

struct SaveJob {
  std::filesystem::path folder;
  int64_t first = 0, last = 0;  ///< steps to save
  std::string mode = "async";   ///< or "sync"
  std::string faults = "-";     ///< see shim.cpp
  std::string log = "-";        ///< file for the calls
};

struct SaveEnd {
  bool killed = false;
  int exit_code = 0;
  std::set<int64_t> saved;            ///< steps that it said were saved
  std::vector<std::string> refusals;  ///< lines "failed .." and "refused .."
};

/// Serves one job after the other in a process of its own.
class Driver {
 public:
  Driver();
  ~Driver();
  Driver(const Driver&) = delete;
  Driver& operator=(const Driver&) = delete;

  SaveEnd save(const SaveJob& job);

 private:
  pid_t pid_ = -1;
  FileDescriptor requests_;
  std::FILE* replies_ = nullptr;
};

/// The same on two ranks under `tessera launch`; faults in one of them.
SaveEnd save_on_two_ranks(const SaveJob& job, int faulty_rank);

/// The calls that a log holds.
std::vector<std::string> calls_in(const std::filesystem::path& log);

}  // namespace tessera::faults
