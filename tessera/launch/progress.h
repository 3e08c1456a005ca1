// How far each rank is, in memory that outlives it: the launcher can say at which step a rank was
// killed.
#pragma once

#include <cstdint>
#include <optional>

#include "tessera/launch/file_descriptor.h"

namespace tessera::launch {

/// The worker's side. Does nothing when the launcher did not set TESSERA_PROGRESS_FD.
class StepBeacon {
 public:
  /// Finds the counter of this rank by TESSERA_PROGRESS_FD and LOCAL_RANK. Never throws.
  static StepBeacon from_environment();
  StepBeacon() = default;
  ~StepBeacon();
  StepBeacon(StepBeacon&& other) noexcept;
  StepBeacon& operator=(StepBeacon&& other) noexcept;

  void set(int64_t step);  ///< one store to memory
  bool is_connected() const { return counters_ != nullptr; }

 private:
  int64_t* counters_ = nullptr;
  int64_t num_counters_ = 0, index_ = 0;
};

/// The launcher's side: one counter for each local rank, in a file without a name.
class StepCounters {
 public:
  explicit StepCounters(int num_ranks);
  ~StepCounters();
  StepCounters(const StepCounters&) = delete;
  StepCounters& operator=(const StepCounters&) = delete;

  int fd() const {
    return fd_.get();
  }  ///< for TESSERA_PROGRESS_FD; closed on exec unless passed on
  std::optional<int64_t> step(int local_rank) const;  ///< none: the rank has not set one
  void clear();

 private:
  FileDescriptor fd_;
  int64_t* counters_ = nullptr;
  int64_t num_counters_ = 0;
};

}  // namespace tessera::launch
