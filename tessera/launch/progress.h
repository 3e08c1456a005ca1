// How far each rank is, in memory that outlives it: the launcher can say at which step a rank was
// killed, and what it was doing.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "tessera/base/file_descriptor.h"

namespace tessera::launch {

/// What a rank tells; the launcher reads it when the rank has ended.
struct RankProgress;

/// The worker's side. Does nothing when the launcher did not set TESSERA_PROGRESS_FD.
class StepBeacon {
 public:
  /// Finds the place of this rank by TESSERA_PROGRESS_FD and LOCAL_RANK. Never throws.
  static StepBeacon from_environment();
  StepBeacon() = default;
  ~StepBeacon();
  StepBeacon(StepBeacon&& other) noexcept;
  StepBeacon& operator=(StepBeacon&& other) noexcept;

  void set(int64_t step);  ///< one store to memory; the rank does nothing in particular in it yet
  void doing(std::string_view what);  ///< in this step; the first 55 bytes
  bool is_connected() const { return ranks_ != nullptr; }

 private:
  RankProgress* ranks_ = nullptr;
  int64_t num_ranks_ = 0, index_ = 0;
};

/// The launcher's side: one place for each local rank, in a file without a name.
class ProgressBoard {
 public:
  explicit ProgressBoard(int num_ranks);
  ~ProgressBoard();
  ProgressBoard(const ProgressBoard&) = delete;
  ProgressBoard& operator=(const ProgressBoard&) = delete;

  int fd() const {
    return fd_.get();
  }  ///< for TESSERA_PROGRESS_FD; closed on exec unless passed on
  std::optional<int64_t> step(int local_rank) const;  ///< none: the rank has not set one
  std::string doing(int local_rank) const;  ///< of a rank that has ended; empty: nothing was told
  void clear();

 private:
  FileDescriptor fd_;
  RankProgress* ranks_ = nullptr;
  int64_t num_ranks_ = 0;
};

}  // namespace tessera::launch
